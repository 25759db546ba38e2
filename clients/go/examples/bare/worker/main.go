//go:build unix

// Command worker hosts the tool find_duplicates on bare gRPC stubs: one stream, a batch of frames in each message.
//
// All that a worker owes the sidecar is in worker.go: say hello, run what is invoked, answer pings, heed cancels, leave
// in order. The tool itself is in duplicates.go.
package main

import (
	"context"
	"flag"
	"log"
	"os"
	"strings"

	"github.com/pillion-host/pillion/clients/go/pillionv1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

func main() {
	target := flag.String("target", "", "the sidecar's worker listener, such as unix:/run/workers.sock")
	name := flag.String("name", "finder", "the configured name of the worker set")
	tokenFile := flag.String("token-file", "", "the file that holds the set's token")
	folder := flag.String("folder", "", "the folder to serve, and nothing outside it")
	flag.Parse()
	if *target == "" || *tokenFile == "" || *folder == "" || flag.NArg() > 0 {
		flag.Usage()
		os.Exit(2)
	}
	log.SetFlags(0)
	served, err := os.OpenRoot(*folder)
	if err != nil {
		log.Fatalf("The folder cannot be opened: %v.", err)
	}
	token, err := os.ReadFile(*tokenFile)
	if err != nil {
		log.Fatalf("The token cannot be read: %v.", err)
	}
	connection, err := grpc.NewClient(*target, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		log.Fatalf("The target is no address: %v.", err)
	}
	hello := &pillionv1.WorkerHello{
		Worker:      *name,
		Token:       strings.TrimSpace(string(token)),
		Tools:       []*pillionv1.ToolDescriptor{duplicatesDescriptor},
		Concurrency: proto.Uint32(concurrency),
	}
	tools := map[string]tool{
		"find_duplicates": func(ctx context.Context, arguments []byte, report report) ([]byte, error) {
			return findDuplicates(ctx, served, arguments, report)
		},
	}
	if err := newWorker(hello, tools).serve(connection); err != nil {
		log.Fatalf("The sidecar ended the stream: %s: %s", status.Code(err), status.Convert(err).Message())
	}
}
