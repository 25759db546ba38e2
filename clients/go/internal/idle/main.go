// Command idle holds a connection without calls, with keepalive pings every 10 s, and says whether it was lost.
package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: idle TARGET DURATION")
		os.Exit(2)
	}
	if sentence := hold(os.Args[1], os.Args[2]); sentence != "" {
		fmt.Fprintln(os.Stderr, sentence)
		os.Exit(1)
	}
}

func hold(target, duration string) string {
	long, err := time.ParseDuration(duration)
	if err != nil {
		return fmt.Sprintf("The duration cannot be read: %s.", err)
	}
	ctx, stop := context.WithTimeout(context.Background(), long)
	defer stop()
	connection, err := grpc.NewClient(
		target,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, PermitWithoutStream: true}),
	)
	if err != nil {
		return fmt.Sprintf("The target is no address: %s.", err)
	}
	defer connection.Close()
	connection.Connect()
	for state := connection.GetState(); state != connectivity.Ready; state = connection.GetState() {
		if !connection.WaitForStateChange(ctx, state) {
			return "There was no connection."
		}
	}
	begun := time.Now()
	if connection.WaitForStateChange(ctx, connectivity.Ready) {
		return fmt.Sprintf("The connection was lost after %s.", time.Since(begun).Round(time.Second))
	}
	return ""
}
