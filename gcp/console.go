package gcp

import (
	"context"
	"net/http"

	"cloud.google.com/go/compute/apiv1/computepb"
	"google.golang.org/protobuf/proto"

	"github.com/egressfleet/egress/provider"
)

var _ provider.ConsoleReader = (*Provider)(nil)

// ReadConsole implements [provider.ConsoleReader]: it reads the end of what the
// guest wrote to its first serial port, of which Google keeps about 1 MB while the
// instance exists. A limit below one means [provider.DefaultConsoleBytes].
func (p *Provider) ReadConsole(ctx context.Context, id string, limit int) (text []byte, err error) {
	if limit < 1 {
		limit = provider.DefaultConsoleBytes
	}
	at, err := p.find("ReadConsole", id)
	if err != nil {
		return nil, err
	}
	err = p.operate(ctx, "ReadConsole", at, func(ctx context.Context) error {
		if _, err := p.readOwn(ctx, at); err != nil {
			return err
		}
		text, err = p.serialPort(ctx, at, limit)
		return err
	})
	return text, err
}

// serialPort reads the last bytes. An instance that has not started has none,
// which the API calls not ready.
func (p *Provider) serialPort(ctx context.Context, at place, limit int) ([]byte, error) {
	out, err := call(ctx, p, CallInfo{Method: "instances.getSerialPortOutput", Scope: at.zone, Name: at.name},
		func(ctx context.Context, c *clients) (*computepb.SerialPortOutput, error) {
			return c.instances.GetSerialPortOutput(ctx, &computepb.GetSerialPortOutputInstanceRequest{
				Project: p.cfg.Project, Zone: at.zone, Instance: at.name, Port: proto.Int32(1), Start: proto.Int64(-int64(limit)),
			}, retries())
		})
	if hasStatus(err, http.StatusBadRequest) && classify(err).Code == "resourceNotReady" {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	text := []byte(out.GetContents())
	return text[max(len(text)-limit, 0):], nil
}
