module github.com/egressfleet/egress/bench

go 1.26.0

require (
	github.com/egressfleet/egress v0.0.0
	github.com/jackc/puddle/v2 v2.2.3
	github.com/kdomanski/iso9660 v0.4.0
)

require (
	github.com/go-logr/logr v1.4.4 // indirect
	golang.org/x/sync v0.1.0 // indirect
)

replace github.com/egressfleet/egress => ../
