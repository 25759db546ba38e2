// Command caller makes one call over bare gRPC stubs: progress on standard error, the result as JSON on standard output.
package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"

	"github.com/pillion-host/pillion/clients/go/pillionv1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
)

func main() {
	if len(os.Args) != 4 {
		fmt.Fprintln(os.Stderr, "usage: caller TARGET TOOL ARGUMENTS")
		os.Exit(2)
	}
	if sentence := call(os.Args[1], os.Args[2], os.Args[3]); sentence != "" {
		fmt.Fprintln(os.Stderr, sentence)
		os.Exit(1)
	}
}

// call runs the tool and prints what comes of it. It returns a sentence if it failed.
func call(target, tool, arguments string) string {
	connection, err := grpc.NewClient(target, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return fmt.Sprintf("The target is no address: %s.", err)
	}
	defer connection.Close()
	stream, err := pillionv1.NewToolHostServiceClient(connection).Execute(context.Background())
	if err != nil {
		return lost(err)
	}
	start := &pillionv1.Frame_Start{Start: &pillionv1.Start{Tool: tool, Arguments: []byte(arguments)}}
	// A send that fails does not say why; receiving does.
	_ = stream.Send(&pillionv1.ExecuteRequest{Frames: []*pillionv1.Frame{{Call: 1, Body: start}}})
	_ = stream.CloseSend()
	for {
		message, err := stream.Recv()
		if err == io.EOF {
			return "The stream ended without an outcome."
		} else if err != nil {
			return lost(err)
		}
		for _, frame := range message.Frames {
			switch body := frame.Body.(type) {
			case *pillionv1.Frame_Progress:
				var report struct{ Message string }
				_ = json.Unmarshal(body.Progress.Payload, &report)
				fmt.Fprintln(os.Stderr, cmp.Or(report.Message, string(body.Progress.Payload)))
			case *pillionv1.Frame_Outcome:
				result := body.Outcome.GetResult()
				if result == nil {
					return cmp.Or(body.Outcome.GetFailure().GetMessage(), "The call ended without a result.")
				}
				fmt.Printf("%s\n", result.Json)
				if result.IsError {
					return "The tool says that this is an error."
				}
				return ""
			}
		}
	}
}

func lost(err error) string {
	return fmt.Sprintf("The stream was lost: %s: %s", status.Code(err), status.Convert(err).Message())
}
