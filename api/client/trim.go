package client

import (
	"context"
	"io"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	shinglev1 "github.com/shingle-store/shingle/api/shingle/v1"
)

// TrimSummary is all that a trim has come to.
type TrimSummary = shinglev1.TrimResponse

// TrimOptions say what to trim. The zero value is everything.
type TrimOptions struct {
	Start     uint64  // first logical address, in bytes
	Length    *uint64 // bytes; nil: to the end
	MinLength uint64  // free ranges shorter than so many bytes are passed over
	Reclaim   bool    // move live data out of the way first
	DryRun    bool    // count only
}

// trimGrace is how long a trim that was cancelled may take to end: what it has sent to the device
// is waited for.
const trimGrace = 30 * time.Second

// Trim tells the device what is free and returns the summary in the end. progress, unless nil, is
// given each summary on the way, in the calling goroutine.
//
// When ctx ends, a trim that has begun is cancelled, and its last summary returned, with state
// CANCELLED and no error, so that nothing of the count is lost. After any other error the summary
// is the last that came, nil if none did: next_start in it is where to go on.
func (c *Client) Trim(ctx context.Context, o TrimOptions, progress func(*TrimSummary)) (*TrimSummary, error) {
	req := &shinglev1.TrimRequest{Start: o.Start, Length: o.Length, MinLength: o.MinLength, Reclaim: o.Reclaim, DryRun: o.DryRun}
	sctx, hangUp := context.WithCancel(context.WithoutCancel(ctx))
	defer hangUp()
	unhook := context.AfterFunc(ctx, hangUp) // until there is a count to lose
	defer unhook()
	var stream shinglev1.MaintenanceService_TrimClient
	var first *TrimSummary
	err := c.retry(ctx, func() (err error) {
		if stream, err = c.maintenance.Trim(sctx, req); err == nil {
			first, err = stream.Recv()
		}
		err = asError(err)
		c.heard(err)
		return err
	})
	if err != nil {
		return nil, err
	}
	if !unhook() {
		return nil, asError(ctx.Err())
	}
	return c.follow(ctx, hangUp, stream, first, progress)
}

// follow takes the summaries after the first until the last.
func (c *Client) follow(
	ctx context.Context, hangUp context.CancelFunc, stream shinglev1.MaintenanceService_TrimClient, last *TrimSummary, progress func(*TrimSummary),
) (*TrimSummary, error) {
	type answer struct {
		r   *TrimSummary
		err error
	}
	answers := make(chan answer)
	var helpers sync.WaitGroup
	over, end := context.WithCancel(context.WithoutCancel(ctx))
	defer func() {
		hangUp()
		end()
		helpers.Wait()
	}()
	helpers.Go(func() {
		for {
			r, err := stream.Recv()
			select {
			case answers <- answer{r, err}:
			case <-over.Done():
				return
			}
			if err != nil {
				return
			}
		}
	})
	if progress != nil {
		progress(last)
	}
	cancelled := ctx.Done()
	var patience <-chan time.Time
	for {
		select {
		case a := <-answers:
			switch {
			case a.err == nil:
				if last = a.r; progress != nil {
					progress(last)
				}
			case a.err != io.EOF:
				err := asError(a.err)
				c.heard(err)
				return last, err
			case last.GetState() <= shinglev1.MaintenanceState_MAINTENANCE_STATE_RUNNING:
				return last, failure(codes.Internal, "", nil, "trim: the server ended the call without a last summary")
			default:
				return last, nil
			}
		case <-cancelled:
			if last.GetBytesDone() == 0 {
				// It may be waiting for another one to end, which is not this caller's to cancel.
				last = proto.CloneOf(last)
				last.State = shinglev1.MaintenanceState_MAINTENANCE_STATE_CANCELLED
				return last, nil
			}
			cancelled = nil
			timer := time.NewTimer(trimGrace)
			defer timer.Stop()
			patience = timer.C
			helpers.Go(func() { _, _ = c.maintenance.CancelTrim(over, &shinglev1.CancelTrimRequest{}) })
		case <-patience:
			return last, asError(ctx.Err())
		}
	}
}
