package main

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/shingle-store/shingle/internal/errdefs"
)

const unixScheme = "unix://"

// listen opens a listener on a host and port, or on a unix socket, or says which flag to change.
func listen(flag, addr string) (net.Listener, error) {
	if path, ok := strings.CutPrefix(addr, unixScheme); ok {
		return listenUnix(flag, path)
	}
	lis, err := net.Listen("tcp", addr)
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, inUse(flag, addr)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot listen on %s, choose another %s: %w", addr, flag, err)
	}
	return lis, nil
}

func inUse(flag, addr string) error {
	return errdefs.New(errdefs.Unavailable, errdefs.ReasonInUse, "engine.listen", addr, fmt.Sprintf(
		"another program listens on %s already; stop it or choose another %s", addr, flag))
}

// listenUnix listens on a socket at path, in a folder that is there. A socket that a crash left behind
// is replaced: nobody answers on it. The folder is locked meanwhile, or of two engines started at
// once the slower could take the socket of the faster for one left behind.
func listenUnix(flag, path string) (net.Listener, error) {
	refuse := func(err error) (net.Listener, error) {
		return nil, fmt.Errorf("cannot listen on %s%s, choose another %s: %w", unixScheme, path, flag, err)
	}
	folder, err := os.Open(filepath.Dir(path))
	if err != nil {
		return refuse(err)
	}
	defer folder.Close() // and with it the lock
	switch err := flock(folder); {
	case err == unix.EWOULDBLOCK:
		return nil, inUse(flag, unixScheme+path)
	case err != nil:
		return refuse(err)
	}
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return refuse(err)
	case info.Mode().Type() != fs.ModeSocket:
		return refuse(errors.New("there is a file of that name, and it is no socket"))
	default:
		conn, err := net.Dial("unix", path)
		if err == nil {
			_ = conn.Close()
			return nil, inUse(flag, unixScheme+path)
		}
		if !errors.Is(err, syscall.ECONNREFUSED) {
			return refuse(err)
		}
		if err := os.Remove(path); err != nil {
			return refuse(err)
		}
	}
	lis, err := net.Listen("unix", path)
	if err != nil {
		return refuse(err)
	}
	return lis, nil
}

// flock locks an open file or folder, or answers EWOULDBLOCK at once.
func flock(f *os.File) error {
	for {
		if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != unix.EINTR {
			return err
		}
	}
}

// addressOf is an address as --listen has it.
func addressOf(a net.Addr) string {
	if a.Network() == "unix" {
		return unixScheme + a.String()
	}
	return a.String()
}

// isLocal reports whether only programs of this machine can reach the address.
func isLocal(a net.Addr) bool {
	tcp, ok := a.(*net.TCPAddr)
	return a.Network() == "unix" || ok && tcp.IP.IsLoopback()
}
