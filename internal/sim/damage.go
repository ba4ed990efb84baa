package sim

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"path/filepath"

	"github.com/shingle-store/shingle/internal/engine"
	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/store/storetest"
)

// Damaged does a short run, damages the metadata that it leaves, opens the store on it and does what
// one does with a store. What it answers may be any error, and nothing is asked of what it reads; but
// every call must end, and the process go on: to be run in a child of the test's. The error is of the
// run before the damage, or of an engine that calls its own fault an internal error.
func Damaged(seed uint64, dir string, cov *Coverage) error {
	cfg := ConfigFor(seed)
	cfg.Lives, cfg.Faults = 2, 0
	r := &run{cfg: cfg, c: Fresh(seed), cov: cov, meta: filepath.Join(dir, "metadata.db"), regs: newRegisters(sharedNames)}
	r.do()
	if r.err != nil {
		return r.err
	}
	image, err := storetest.Image(r.meta)
	if err != nil {
		return err
	}
	what := damage(image, rand.New(rand.NewPCG(seed, 9)))
	if what == "cut short" {
		image = image[:rand.New(rand.NewPCG(seed, 10)).IntN(len(image))]
	}
	cov.add("damage "+what, 1)
	if err := storetest.Write(r.meta, image); err != nil {
		return err
	}
	r.newLife(true)
	var e *engine.Engine
	r.await("open of a damaged store", func() { e, err = engine.Open(context.Background(), r.options(r.life)) }, false)
	if err != nil {
		cov.add("damage refused at open", 1)
		return nil
	}
	var errs []error
	r.await("use of a damaged store", func() { errs = use(e) }, false)
	r.await("close of a damaged store", func() { e.Close(context.Background()) }, false)
	for _, err := range errs {
		cov.add("damage met by a request", 1)
		if errdefs.KindOf(err) == errdefs.Internal {
			return fmt.Errorf("%s: %w", what, err)
		}
	}
	cov.add("damage survived", 1)
	return nil
}

// damage changes an image in place and says how.
func damage(image []byte, rng *rand.Rand) string {
	const page = 4096
	pages := len(image) / page
	switch rng.IntN(5) {
	case 0:
		image[rng.IntN(len(image))] ^= 1 << rng.IntN(8)
		return "bit flipped"
	case 1:
		for range 8 { // page headers and element tables, where bbolt believes everything
			image[rng.IntN(pages)*page+rng.IntN(128)] = byte(rng.Uint32())
		}
		return "page heads scribbled over"
	case 2:
		copy(image[rng.IntN(pages)*page:], image[rng.IntN(pages)*page:][:page])
		return "page misdirected"
	case 3:
		clear(image[rng.IntN(pages)*page:][:page])
		return "page lost"
	}
	return "cut short"
}

// use reads all there is, writes, syncs and deletes, and returns the errors.
func use(e *engine.Engine) (errs []error) {
	ctx := context.Background()
	note := func(err error) {
		if err != nil && !errors.Is(err, io.EOF) {
			errs = append(errs, err)
		}
	}
	files, _, err := e.List(ctx, engine.ListRequest{Recursive: true})
	note(err)
	for _, f := range files {
		if f.Directory {
			continue
		}
		r, err := e.OpenReader(ctx, engine.ReadRequest{Ref: engine.Ref{Name: f.Name}})
		if err != nil {
			note(err)
			continue
		}
		for range 64 {
			if _, err = r.Next(ctx); err != nil {
				break
			}
		}
		note(err)
		r.Close()
	}
	for i := range 4 {
		w, err := e.OpenWriter(ctx, engine.WriterOptions{Name: fmt.Sprintf("new/%d", i), Mode: engine.Replace})
		if err != nil {
			note(err)
			continue
		}
		note(w.Write(ctx, nil, [][]byte{content(uint64(i), 20_000)}, nil))
		_, err = w.Finish(ctx, nil)
		note(err)
		w.Close()
	}
	_, err = e.Sync(ctx, nil, nil)
	note(err)
	for _, f := range files {
		_, err := e.Delete(ctx, engine.DeleteRequest{Name: f.Name, AllowMissing: true})
		note(err)
	}
	_, err = e.Sync(ctx, nil, nil)
	note(err)
	return errs
}
