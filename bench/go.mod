module github.com/egressfleet/egress/bench

go 1.26.0

require (
	github.com/digitalocean/go-libvirt v0.0.0-20261013170128-efbbdf578ac8
	github.com/egressfleet/egress v0.0.0
	github.com/jackc/puddle/v2 v2.2.3
	github.com/kdomanski/iso9660 v0.4.0
	github.com/redis/go-redis/v9 v9.23.0
	golang.org/x/crypto v0.59.0
)

require (
	github.com/cespare/xxhash/v2 v2.3.0 // indirect
	go.uber.org/atomic v1.12.0 // indirect
)

require (
	github.com/egressfleet/egress/lease/redislease v0.0.0
	github.com/go-logr/logr v1.4.4 // indirect
	github.com/klauspost/compress v1.20.4 // indirect
	github.com/skeema/knownhosts v1.3.3 // indirect
	github.com/ulikunitz/xz v0.5.17 // indirect
	golang.org/x/sync v0.1.0 // indirect
	golang.org/x/sys v0.50.0 // indirect
	libvirt.org/go/libvirtxml v1.12008.0 // indirect
)

replace github.com/egressfleet/egress => ../

replace github.com/egressfleet/egress/lease/redislease => ../lease/redislease
