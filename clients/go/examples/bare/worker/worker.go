//go:build unix

package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log"
	"os"
	"os/signal"
	"syscall"

	"github.com/pillion-host/pillion/clients/go/pillionv1"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
)

const (
	concurrency   = 4
	messageFrames = 128 // Where a message is closed and the next one begun,
	messageBytes  = 256 << 10
	queuedFrames  = 1024 // Tools wait when the sidecar takes no more.
)

// report says what was done, how much and of how much; a total of 0 is not known.
type report func(message string, done, total int64)

// tool runs until it returns or its context ends. Its arguments and its result are JSON.
type tool func(ctx context.Context, arguments []byte, report report) ([]byte, error)

// refusal is an error of a tool that its caller is told: a sentence that says what would work.
type refusal string

func (r refusal) Error() string { return string(r) }

type frame = pillionv1.Frame

// worker is one instance. All but its outbox belongs to the goroutine of serve.
type worker struct {
	hello   *pillionv1.WorkerHello
	tools   map[string]tool
	outbox  chan *frame
	running map[uint64]context.CancelFunc
	ended   chan uint64
	signals chan os.Signal
	leaving bool // Goodbye was said, or will be once no call runs.
	said    bool // Goodbye was said.
	parted  bool // Everything was said.
}

func newWorker(hello *pillionv1.WorkerHello, tools map[string]tool) *worker {
	return &worker{
		hello:   hello,
		tools:   tools,
		outbox:  make(chan *frame, queuedFrames),
		running: map[uint64]context.CancelFunc{},
		ended:   make(chan uint64),
		signals: make(chan os.Signal, 1),
	}
}

// serve attaches and handles frames until the stream ends. However it ends, it cancels the calls that still run.
func (w *worker) serve(connection *grpc.ClientConn) error {
	ctx, cut := context.WithCancel(context.Background())
	defer cut()
	stream, err := pillionv1.NewWorkerHostServiceClient(connection).Attach(ctx, grpc.WaitForReady(true))
	if err != nil {
		return err
	}
	w.outbox <- &frame{Body: &pillionv1.Frame_WorkerHello{WorkerHello: w.hello}}
	inbox, lost := make(chan []*frame), make(chan error)
	go w.write(stream)
	go read(stream, inbox, lost)
	for {
		select {
		case frames := <-inbox:
			for _, frame := range frames {
				w.handle(frame)
			}
		case call := <-w.ended:
			w.running[call]()
			delete(w.running, call)
		case <-w.signals:
			signal.Reset() // A second one ends the process.
			w.leave(true)
		case err := <-lost:
			for _, cancel := range w.running {
				cancel()
			}
			for range w.running {
				<-w.ended
			}
			return err
		}
		w.part()
	}
}

// handle handles one frame. Any that it does not know is ignored, so that the protocol can grow.
func (w *worker) handle(received *frame) {
	if w.parted {
		return
	}
	switch body := received.Body.(type) {
	case *pillionv1.Frame_Welcome:
		for _, tool := range body.Welcome.Refused {
			log.Printf("the tool %s was refused: %s", tool.Name, tool.Reason)
		}
		signal.Notify(w.signals, os.Interrupt, syscall.SIGTERM)
	case *pillionv1.Frame_Invoke:
		ctx, cancel := context.WithCancel(context.Background())
		w.running[received.Call] = cancel
		go w.run(ctx, received.Call, body.Invoke)
	case *pillionv1.Frame_Cancel:
		if cancel, runs := w.running[received.Call]; runs {
			cancel()
		}
	case *pillionv1.Frame_Ping:
		w.outbox <- &frame{Body: &pillionv1.Frame_Pong{Pong: &pillionv1.Pong{Nonce: body.Ping.Nonce}}}
	case *pillionv1.Frame_Drain:
		w.leave(false)
	case *pillionv1.Frame_StreamError:
		log.Printf("the sidecar objects: %s", body.StreamError.Message)
	}
}

// leave lets the calls that run finish. Goodbye, said at once, keeps new ones away; the answer to Drain is said last.
func (w *worker) leave(atOnce bool) {
	if w.leaving {
		return
	}
	w.leaving = true
	if atOnce {
		w.goodbye()
	}
}

func (w *worker) goodbye() {
	w.outbox <- &frame{Body: &pillionv1.Frame_Goodbye{Goodbye: &pillionv1.Goodbye{}}}
	w.said = true
}

// part says goodbye, if that is still to be said, and half-closes the stream once a leaving worker runs no call.
func (w *worker) part() {
	if !w.leaving || w.parted || len(w.running) > 0 {
		return
	}
	if !w.said {
		w.goodbye()
	}
	close(w.outbox)
	w.parted = true
}

// run ends a call with exactly one outcome.
func (w *worker) run(ctx context.Context, call uint64, invoke *pillionv1.Invoke) {
	report := func(message string, done, total int64) {
		payload, _ := json.Marshal(struct {
			Message string `json:"message"`
			Done    int64  `json:"done,omitempty"`
			Total   int64  `json:"total,omitempty"`
		}{message, done, total})
		w.outbox <- &frame{Call: call, Body: &pillionv1.Frame_Progress{Progress: &pillionv1.Progress{Payload: payload}}}
	}
	outcome := &pillionv1.Outcome{}
	if result, err := w.call(ctx, invoke, report); err == nil {
		outcome.Kind = &pillionv1.Outcome_Result{Result: &pillionv1.Result{Json: result}}
	} else {
		outcome.Kind = &pillionv1.Outcome_Failure{Failure: failure(ctx, invoke, err)}
	}
	w.outbox <- &frame{Call: call, Body: &pillionv1.Frame_Outcome{Outcome: outcome}}
	w.ended <- call
}

// call runs a tool. One that panics has failed, and harms no other.
func (w *worker) call(ctx context.Context, invoke *pillionv1.Invoke, report report) (result []byte, err error) {
	defer func() {
		if reason := recover(); reason != nil {
			err = errors.New("the tool panicked")
			log.Printf("execution %s: %v", invoke.Context.GetExecutionId(), reason)
		}
	}()
	run, known := w.tools[invoke.Tool]
	if !known {
		return nil, refusal("This worker has no tool of this name.")
	}
	return run(ctx, invoke.Arguments, report)
}

func failure(ctx context.Context, invoke *pillionv1.Invoke, err error) *pillionv1.Failure {
	failure := &pillionv1.Failure{SideEffects: pillionv1.SideEffects_SIDE_EFFECTS_NONE} // True of a tool that only reads.
	if refused := refusal(""); errors.As(err, &refused) {
		failure.Kind = pillionv1.FailureKind_FAILURE_KIND_INVALID_ARGUMENTS
		failure.Message = refused.Error()
	} else if ctx.Err() != nil {
		failure.Kind = pillionv1.FailureKind_FAILURE_KIND_CANCELLED
		failure.Message = "The tool stopped because its call was cancelled."
	} else { // The error may quote the data: it goes to this worker's own log and no further.
		log.Printf("execution %s failed: %v", invoke.Context.GetExecutionId(), err)
		failure.Kind = pillionv1.FailureKind_FAILURE_KIND_TOOL_FAILED
		failure.Message = "The tool failed; its worker's log says why."
	}
	return failure
}

// write is the one writer: all that is queued rides in the next message, and nothing waits for a batch to fill.
func (w *worker) write(stream grpc.BidiStreamingClient[pillionv1.AttachRequest, pillionv1.AttachResponse]) {
	for first := range w.outbox {
		frames, size := []*frame{first}, proto.Size(first)
		for len(w.outbox) > 0 && len(frames) < messageFrames && size < messageBytes {
			next := <-w.outbox
			frames, size = append(frames, next), size+proto.Size(next)
		}
		// A send that fails means that the stream is lost: read says so, and what is still queued goes nowhere.
		_ = stream.Send(&pillionv1.AttachRequest{Frames: frames})
	}
	_ = stream.CloseSend()
}

// read passes on what comes, until the stream ends: in order, which is no error, or not.
func read(
	stream grpc.BidiStreamingClient[pillionv1.AttachRequest, pillionv1.AttachResponse],
	inbox chan<- []*frame, lost chan<- error,
) {
	for {
		message, err := stream.Recv()
		if err != nil {
			if err == io.EOF {
				err = nil
			}
			lost <- err
			return
		}
		inbox <- message.Frames
	}
}
