package gcp

import (
	"context"

	"cloud.google.com/go/compute/apiv1/computepb"

	"github.com/egressfleet/egress/provider"
)

// States is the table of states.
var States = states

// InstanceOf is what Get makes of an instance of the API.
func InstanceOf(in *computepb.Instance) provider.Instance { return instanceOf("z", in, record{}) }

// OperationError is what becomes of a failed operation.
func OperationError(op *computepb.Operation) error { return operationError(op) }

// Redact is how a payload is logged.
var Redact = redact

// PolicyEndpoint is where the Resource Manager is looked for.
var PolicyEndpoint = policyEndpoint

// ReadAtMost sets how many bytes of an answer are read.
func ReadAtMost(p *Provider, n int64) {
	c, err := p.clients.get(context.Background())
	if err != nil {
		panic(err)
	}
	c.wire.most = n
}
