package leasehttp

import (
	"reflect"
	"strings"
)

// Operations is how many the handler has.
const Operations = 7

// WireFields are the JSON fields of the wire structs, by the name of their schema.
func WireFields() map[string][]string {
	fields := map[string][]string{}
	for name, v := range map[string]any{
		"AcquireRequest": acquireRequest{}, "RenewRequest": renewRequest{}, "ReleaseRequest": releaseRequest{},
		"ReportRequest": reportRequest{}, "Endpoint": wireEndpoint{}, "Lease": wireLease{}, "Holding": wireHolding{},
		"Status": wireStatus{}, "Counts": wireCounts{}, "Stats": wireStats{}, "Error": errorAnswer{},
	} {
		for field := range reflect.TypeOf(v).Fields() {
			tag, _, _ := strings.Cut(field.Tag.Get("json"), ",")
			fields[name] = append(fields[name], tag)
		}
	}
	return fields
}
