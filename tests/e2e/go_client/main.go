// SPDX-License-Identifier: Apache-2.0

// An independent gRPC peer: what other people's clients would do, with another implementation of
// gRPC and of protobuf. Prints one line a step; exits 1 at the first thing that is not as the
// protocol says.
package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	health "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	weft "weft/weft"
)

func must(what string, err error) {
	if err != nil {
		fmt.Println("FAILED", what, err)
		os.Exit(1)
	}
	fmt.Println("ok", what)
}

func want(what string, err error, code codes.Code) {
	if status.Code(err) != code {
		fmt.Println("FAILED", what, "wanted", code, "got", err)
		os.Exit(1)
	}
	fmt.Println("ok", what, "is", code)
}

func main() {
	path := strings.TrimPrefix(os.Args[1], "unix:")
	dial := func(ctx context.Context, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", path)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	conn, err := grpc.DialContext(ctx, "passthrough:///weft", grpc.WithInsecure(), grpc.WithContextDialer(dial), grpc.WithBlock())
	must("dial", err)
	check, err := health.NewHealthClient(conn).Check(ctx, &health.HealthCheckRequest{})
	must("health", err)
	if check.Status != health.HealthCheckResponse_SERVING {
		must("health status", fmt.Errorf("%v", check.Status))
	}
	client := weft.NewWeftClient(conn)
	workers, err := client.Workers(ctx, &weft.WorkersRequest{})
	must("workers", err)
	fmt.Println("workers", len(workers.Workers))
	job, err := os.ReadFile(os.Args[2])
	must("read", err)
	request := &weft.SubmitRequest{RequestId: strings.Repeat("5", 32), Resolved: string(job)}
	first, err := client.Submit(ctx, request)
	must("submit", err)
	second, err := client.Submit(ctx, request)
	must("submit again", err)
	if first.Job != second.Job {
		must("one job a request", fmt.Errorf("%s and %s", first.Job, second.Job))
	}
	watch, err := client.Watch(ctx, &weft.JobRequest{Job: first.Job})
	must("watch", err)
	last := ""
	for {
		update, err := watch.Recv()
		if err != nil {
			break
		}
		if update.Status != nil {
			last = update.Status.State.String()
		}
	}
	fmt.Println("state", last)
	_, err = client.Status(ctx, &weft.JobRequest{Job: "nothing"})
	want("an unknown job", err, codes.NotFound)
	err = conn.Invoke(ctx, "/weft.v1.Weft/NoSuchMethod", &weft.JobRequest{}, &weft.JobStatus{})
	want("an unknown method", err, codes.Unimplemented)
	huge := &weft.SubmitRequest{RequestId: "x", Resolved: strings.Repeat("x", 64<<20)}
	_, err = client.Submit(ctx, huge)
	want("an oversize message", err, codes.ResourceExhausted)
}
