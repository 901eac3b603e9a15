package kvm

import (
	"context"
	"io"
	"time"

	"github.com/digitalocean/go-libvirt"

	"github.com/egressfleet/egress/internal/virtstream"
)

// streamAPI has the functions that move the content of volumes, and none of the
// others.
type streamAPI struct {
	libvirtAPI
	conn *virtstream.Conn
}

func (s streamAPI) StorageVolUpload(vol libvirt.StorageVol, r io.Reader, offset, length uint64, _ libvirt.StorageVolUploadFlags) error {
	return s.conn.StorageVolUpload(vol, r, offset, length)
}

func (s streamAPI) StorageVolDownload(vol libvirt.StorageVol, w io.Writer, offset, length uint64, _ libvirt.StorageVolDownloadFlags) error {
	return s.conn.StorageVolDownload(vol, w, offset, length)
}

// distance is how long the host takes to answer over this connection; 0 for this
// machine, however busy it is.
func (h *hostConn) distance(ctx context.Context, s *session) (roundTrip time.Duration, err error) {
	stream, ok := s.api.(streamAPI)
	if _, near := h.transport.(localTransport); near || !ok {
		return 0, nil
	}
	measured := make(chan time.Duration, 1)
	err = h.introduce(ctx, func() { s.drop("", nil) }, func() error {
		took, err := stream.conn.RoundTrip()
		measured <- took
		return err
	})
	if err != nil {
		return 0, err
	}
	return <-measured, nil
}

// dialStream is the connector of connections that move the content of volumes.
// A lost one shows in the calls over it.
func (h *hostConn) dialStream(ctx context.Context, way transport, _ func(error)) (libvirtAPI, func(), error) {
	conn, err := way.open(ctx)
	if err != nil {
		return nil, nil, err
	}
	closeConn := h.closer(conn)
	var stream *virtstream.Conn
	err = h.introduce(ctx, closeConn, func() (err error) {
		stream, err = virtstream.Open(conn, string(libvirt.QEMUSystem))
		return err
	})
	if err != nil {
		return nil, nil, err
	}
	return streamAPI{conn: stream}, closeConn, nil
}
