package client

import (
	"context"
	"errors"
	"io"
	"iter"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"

	shinglev1 "github.com/shingle-store/shingle/api/shingle/v1"
)

// The messages of scrub under the names that callers of this package use.
type (
	Scrub        = shinglev1.Scrub
	ScrubFinding = shinglev1.Corruption
)

const (
	scrubRunning   = shinglev1.ScrubState_SCRUB_STATE_RUNNING
	scrubPaused    = shinglev1.ScrubState_SCRUB_STATE_PAUSED
	scrubCancelled = shinglev1.ScrubState_SCRUB_STATE_CANCELLED
)

// ScrubOptions say what to scrub and how. The zero value is the store, at full speed.
type ScrubOptions struct {
	File       string  // only this file; at most one of the three
	BlockGroup *uint32 // only this block group
	Device     string  // only this device: "0"
	ReadOnly   bool    // find and name, mend nothing
	Limit      uint64  // the most bytes read from devices in a second; 0: no limit
}

func (o ScrubOptions) scope() *shinglev1.ScrubScope {
	switch {
	case o.File != "":
		return &shinglev1.ScrubScope{Target: &shinglev1.ScrubScope_File{File: o.File}}
	case o.BlockGroup != nil:
		return &shinglev1.ScrubScope{Target: &shinglev1.ScrubScope_BlockGroup{BlockGroup: *o.BlockGroup}}
	case o.Device != "":
		return &shinglev1.ScrubScope{Target: &shinglev1.ScrubScope_Device{Device: o.Device}}
	}
	return nil
}

// StartScrub begins a scrub, which goes on by itself: see WatchScrub. The request is sent again if the
// engine goes away meanwhile; a request id keeps that from beginning two. If another one runs or is paused
// IsScrubRunning holds for the error.
func (c *Client) StartScrub(ctx context.Context, o ScrubOptions) (*Scrub, error) {
	req := &shinglev1.StartScrubRequest{
		Scope: o.scope(), ReadOnly: o.ReadOnly, LimitBytesPerSecond: o.Limit, RequestId: uuid.NewString(),
	}
	return again(ctx, c, func() (*Scrub, error) {
		r, err := c.maintenance.StartScrub(ctx, req)
		return r.GetScrub(), err
	})
}

// ScrubStatus says how the scrub with the id stands; "": the one that runs or is paused, else the last
// one. IsNotFound holds for the error if there is none.
func (c *Client) ScrubStatus(ctx context.Context, id string) (*Scrub, error) {
	return again(ctx, c, func() (*Scrub, error) {
		r, err := c.maintenance.GetScrub(ctx, &shinglev1.GetScrubRequest{ScrubId: id})
		return r.GetScrub(), err
	})
}

// WatchScrub follows the scrub with the id, "" as in ScrubStatus, until it does not run any more, and
// returns how it stands then. progress, unless nil, is called with every answer on the way and the last,
// one each interval (100 ms to 1 h; 0: 1 s), in the calling goroutine. When ctx ends the scrub goes on.
//
// When the engine goes away it is asked again, about the same scrub. After an error the scrub is the
// last that was seen, nil if none was.
func (c *Client) WatchScrub(ctx context.Context, id string, interval time.Duration, progress func(*Scrub)) (*Scrub, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	req := &shinglev1.WatchScrubRequest{ScrubId: id}
	if interval != 0 {
		req.Interval = durationpb.New(interval)
	}
	pause := c.patience()
	var last *Scrub
	for {
		err := c.watchScrub(ctx, req, func(s *Scrub) {
			last, req.ScrubId = s, s.GetScrubId()
			pause.ok()
			if progress != nil {
				progress(s)
			}
		})
		switch {
		case err == nil && (last == nil || last.GetState() == scrubRunning):
			return last, failure(codes.Internal, "", nil, "scrub: the server ended the watch of a scrub that runs")
		case err == nil:
			return last, nil
		case passing(err) && pause.wait(ctx):
		case ctx.Err() != nil:
			return last, asError(ctx.Err())
		default:
			return last, err
		}
	}
}

// watchScrub follows one stream to its end.
func (c *Client) watchScrub(ctx context.Context, req *shinglev1.WatchScrubRequest, seen func(*Scrub)) error {
	stream, err := c.maintenance.WatchScrub(ctx, req)
	if err != nil {
		return asError(err)
	}
	for {
		r, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			err = asError(err)
			c.heard(err)
			return err
		}
		c.heard(nil)
		seen(r.GetScrub())
	}
}

// PauseScrub stops the scrub that runs, for ResumeScrub to go on with; IsPrecondition holds for the error
// if it does not run. The id is as in ScrubStatus.
func (c *Client) PauseScrub(ctx context.Context, id string) (*Scrub, error) {
	return c.turnScrub(ctx, id, scrubPaused, func() (*Scrub, error) {
		r, err := c.maintenance.PauseScrub(ctx, &shinglev1.PauseScrubRequest{ScrubId: id})
		return r.GetScrub(), err
	})
}

// ResumeScrub goes on with a scrub that was paused, cancelled or interrupted; IsPrecondition holds for the
// error if there is nothing to resume or it runs already. The id is as in ScrubStatus.
func (c *Client) ResumeScrub(ctx context.Context, id string) (*Scrub, error) {
	return c.turnScrub(ctx, id, scrubRunning, func() (*Scrub, error) {
		r, err := c.maintenance.ResumeScrub(ctx, &shinglev1.ResumeScrubRequest{ScrubId: id})
		return r.GetScrub(), err
	})
}

// CancelScrub ends a scrub that runs, is paused or was interrupted, incomplete; IsPrecondition holds for the
// error if it is none of them. The id is as in ScrubStatus.
func (c *Client) CancelScrub(ctx context.Context, id string) (*Scrub, error) {
	return c.turnScrub(ctx, id, scrubCancelled, func() (*Scrub, error) {
		r, err := c.maintenance.CancelScrub(ctx, &shinglev1.CancelScrubRequest{ScrubId: id})
		return r.GetScrub(), err
	})
}

// turnScrub makes a call that takes a scrub to a state, again if the engine goes away meanwhile. A repeated
// one that finds the scrub there already did so the first time.
func (c *Client) turnScrub(ctx context.Context, id string, to shinglev1.ScrubState, call func() (*Scrub, error)) (*Scrub, error) {
	calls := 0
	s, err := again(ctx, c, func() (*Scrub, error) {
		calls++
		return call()
	})
	if calls > 1 && IsPrecondition(err) {
		if now, serr := c.ScrubStatus(ctx, id); serr == nil && now.GetState() == to {
			return now, nil
		}
	}
	return s, err
}

// SetScrubLimit changes the most bytes that the latest scrub reads in a second; 0: no limit. IsPrecondition
// holds for the error if it is over.
func (c *Client) SetScrubLimit(ctx context.Context, bytesPerSecond uint64) (*Scrub, error) {
	return again(ctx, c, func() (*Scrub, error) {
		r, err := c.maintenance.SetScrubLimit(ctx, &shinglev1.SetScrubLimitRequest{LimitBytesPerSecond: bytesPerSecond})
		return r.GetScrub(), err
	})
}

// ScrubFindings walks the bad blocks that a scrub has met, in the order in which it met them, or only those
// that it did not repair. The id is as in ScrubStatus. After an error the walk is over.
func (c *Client) ScrubFindings(ctx context.Context, id string, uncorrectedOnly bool) iter.Seq2[*ScrubFinding, error] {
	return pages(ctx, c, func(token string) ([]*ScrubFinding, string, error) {
		r, err := c.maintenance.ListScrubFindings(ctx, &shinglev1.ListScrubFindingsRequest{
			ScrubId: id, PageToken: token, UncorrectedOnly: uncorrectedOnly,
		})
		return r.GetFindings(), r.GetNextPageToken(), err
	})
}
