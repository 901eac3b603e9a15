// Package virtstream moves the content of storage volumes over a connection to
// libvirt's daemon.
//
// It speaks the part of libvirt's protocol that streams need, which go-libvirt
// speaks too, but not safely: a daemon may send data before the answer to the
// call, a stream that its reader gives up must still be read to its end, and a
// packet of 4 MiB delays everybody else on the way. The protocol is described
// in docs/kbase/internals/rpc.rst of libvirt, and its numbers in
// src/remote/remote_protocol.x.
//
// A [Conn] carries one stream at a time. It has no time-outs: closing the
// underlying connection ends whatever runs.
package virtstream
