package kvm

import (
	"encoding/binary"
	"reflect"

	"github.com/digitalocean/go-libvirt"
)

const remoteProgram = 0x20008086

// The procedures that are no plain calls.
const (
	procVolumeUpload   = 208
	procVolumeDownload = 209
	procLifecycleEvent = 318
)

// replyLayouts has what go-libvirt reads from the replies that have texts or lists,
// by the procedure that was called.
var replyLayouts = map[uint32]reflect.Type{
	7:   reflect.TypeFor[libvirt.ConnectGetCapabilitiesRet](),
	14:  reflect.TypeFor[libvirt.DomainGetXMLDescRet](),
	23:  reflect.TypeFor[libvirt.DomainLookupByNameRet](),
	41:  reflect.TypeFor[libvirt.NetworkDefineXMLRet](),
	46:  reflect.TypeFor[libvirt.NetworkLookupByNameRet](),
	66:  reflect.TypeFor[libvirt.AuthListRet](),
	76:  reflect.TypeFor[libvirt.StoragePoolCreateXMLRet](),
	84:  reflect.TypeFor[libvirt.StoragePoolLookupByNameRet](),
	88:  reflect.TypeFor[libvirt.StoragePoolGetXMLDescRet](),
	93:  reflect.TypeFor[libvirt.StorageVolCreateXMLRet](),
	95:  reflect.TypeFor[libvirt.StorageVolLookupByNameRet](),
	99:  reflect.TypeFor[libvirt.StorageVolGetXMLDescRet](),
	100: reflect.TypeFor[libvirt.StorageVolGetPathRet](),
	228: reflect.TypeFor[libvirt.NodeGetMemoryStatsRet](),
	265: reflect.TypeFor[libvirt.DomainGetMetadataRet](),
	273: reflect.TypeFor[libvirt.ConnectListAllDomainsRet](),
	282: reflect.TypeFor[libvirt.StoragePoolListAllVolumesRet](),
	285: reflect.TypeFor[libvirt.ConnectListAllNodeDevicesRet](),
	342: reflect.TypeFor[libvirt.ConnectGetDomainCapabilitiesRet](),
	344: reflect.TypeFor[libvirt.ConnectGetAllDomainStatsRet](),
	350: reflect.TypeFor[libvirt.DomainDefineXMLFlagsRet](),
	353: reflect.TypeFor[libvirt.DomainInterfaceAddressesRet](),
	391: reflect.TypeFor[libvirt.StoragePoolLookupByTargetPathRet](),
}

var (
	eventLayout = reflect.TypeFor[libvirt.DomainEventCallbackLifecycleMsg]()
	// errorLayout is what go-libvirt takes an error for; more follows.
	errorLayout = reflect.TypeFor[struct {
		Code, Domain, Present uint32
		Message               string
	}]()
	typedParam = reflect.TypeFor[libvirt.TypedParam]()
)

// xdrPayload is what is left to read of a payload.
type xdrPayload struct{ left []byte }

// holds reads over a value as go-libvirt would, without taking memory for it, and
// tells whether all of it is there. What follows does not matter.
func (x *xdrPayload) holds(t reflect.Type) bool {
	switch t.Kind() {
	case reflect.Int8, reflect.Uint8, reflect.Int32, reflect.Uint32:
		return x.skip(4)
	case reflect.Int64, reflect.Uint64, reflect.Float64:
		return x.skip(8)
	case reflect.String:
		size, ok := x.word()
		return ok && x.skip(uint64(size))
	case reflect.Array: // of bytes
		return x.skip(uint64(t.Len())) //nolint:gosec // a length.
	case reflect.Slice:
		return x.holdsList(t.Elem())
	case reflect.Struct:
		return x.holdsStruct(t)
	}
	return false
}

func (x *xdrPayload) holdsList(elem reflect.Type) bool {
	count, ok := x.word()
	for ; ok && count > 0; count-- {
		ok = x.holds(elem)
	}
	return ok
}

func (x *xdrPayload) holdsStruct(t reflect.Type) bool {
	if t == typedParam {
		return x.holdsParam()
	}
	for i := range t.NumField() {
		if !x.holds(t.Field(i).Type) {
			return false
		}
	}
	return true
}

// paramValues are the types of a parameter's value, by the number before it.
var paramValues = map[uint32]reflect.Type{
	1: reflect.TypeFor[int32](), 2: reflect.TypeFor[uint32](), 3: reflect.TypeFor[int64](), 4: reflect.TypeFor[uint64](),
	5: reflect.TypeFor[float64](), 6: reflect.TypeFor[int32](), 7: reflect.TypeFor[string](),
}

func (x *xdrPayload) holdsParam() bool {
	if !x.holds(reflect.TypeFor[string]()) {
		return false
	}
	number, ok := x.word()
	value, known := paramValues[number]
	return ok && known && x.holds(value)
}

func (x *xdrPayload) word() (uint32, bool) {
	if len(x.left) < 4 {
		return 0, false
	}
	v := binary.BigEndian.Uint32(x.left)
	x.left = x.left[4:]
	return v, true
}

// skip reads over bytes and what fills their last word.
func (x *xdrPayload) skip(n uint64) bool {
	n = (n + 3) &^ 3
	if n > uint64(len(x.left)) {
		return false
	}
	x.left = x.left[n:]
	return true
}
