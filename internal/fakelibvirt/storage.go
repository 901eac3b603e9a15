package fakelibvirt

import (
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"time"

	"github.com/digitalocean/go-libvirt"
	"libvirt.org/go/libvirtxml"
)

// StoragePoolLookupByName implements the function of go-libvirt.
func (c *Conn) StoragePoolLookupByName(name string) (libvirt.StoragePool, error) {
	return do(c, "virStoragePoolLookupByName", name, func(h *Host) (libvirt.StoragePool, error) {
		p := h.pools[name]
		if p == nil {
			return libvirt.StoragePool{}, Errorf(libvirt.ErrNoStoragePool, "Storage pool not found: no storage pool with matching name '%s'", name)
		}
		return libvirt.StoragePool{Name: name, UUID: p.uuid}, nil
	})
}

// StoragePoolLookupByTargetPath implements the function of go-libvirt.
func (c *Conn) StoragePoolLookupByTargetPath(path string) (libvirt.StoragePool, error) {
	return do(c, "virStoragePoolLookupByTargetPath", path, func(h *Host) (libvirt.StoragePool, error) {
		for name, p := range h.pools {
			if p.target == path && !p.stopped {
				return libvirt.StoragePool{Name: name, UUID: p.uuid}, nil
			}
		}
		return libvirt.StoragePool{}, Errorf(libvirt.ErrNoStoragePool, "Storage pool not found: no storage pool with matching target path '%s'", path)
	})
}

// StoragePoolCreateXML implements the function of go-libvirt. The pool has the
// files that [Host.PutFile] put into its directory.
func (c *Conn) StoragePoolCreateXML(text string, _ libvirt.StoragePoolCreateFlags) (libvirt.StoragePool, error) {
	var x libvirtxml.StoragePool
	if err := x.Unmarshal(text); err != nil || x.Target == nil {
		return libvirt.StoragePool{}, Errorf(libvirt.ErrXMLError, "XML error: bad pool definition")
	}
	return do(c, "virStoragePoolCreateXML", x.Name, func(h *Host) (libvirt.StoragePool, error) {
		for name, p := range h.pools {
			if name == x.Name || p.target == x.Target.Path {
				return libvirt.StoragePool{}, Errorf(libvirt.ErrOperationFailed, "operation failed: pool '%s' already exists", name)
			}
		}
		p := &pool{uuid: newUUID(), target: x.Target.Path, transient: true, volumes: map[string]*volume{}}
		for path, content := range h.files {
			if dir, name := filepath.Split(path); filepath.Clean(dir) == p.target {
				p.volumes[name] = &volume{content: content, capacity: uint64(len(content)), format: "raw", changed: time.Now()}
			}
		}
		h.pools[x.Name] = p
		return libvirt.StoragePool{Name: x.Name, UUID: p.uuid}, nil
	})
}

// StoragePoolDestroy implements the function of go-libvirt.
func (c *Conn) StoragePoolDestroy(pool libvirt.StoragePool) error {
	return run(c, "virStoragePoolDestroy", pool.Name, func(h *Host) error {
		p, err := h.poolOf(pool)
		if err != nil {
			return err
		}
		if p.stopped = true; p.transient {
			delete(h.pools, pool.Name)
		}
		return nil
	})
}

// StoragePoolGetXMLDesc implements the function of go-libvirt.
func (c *Conn) StoragePoolGetXMLDesc(pool libvirt.StoragePool, _ libvirt.StorageXMLFlags) (string, error) {
	return do(c, "virStoragePoolGetXMLDesc", pool.Name, func(h *Host) (string, error) {
		p, err := h.poolOf(pool)
		if p == nil {
			return "", err
		}
		return "<pool type='dir'><name>" + pool.Name + "</name><target><path>" + p.target + "</path></target></pool>", nil
	})
}

// StoragePoolGetInfo implements the function of go-libvirt.
func (c *Conn) StoragePoolGetInfo(pool libvirt.StoragePool) (state uint8, capacity, allocation, available uint64, err error) {
	state = uint8(libvirt.StoragePoolRunning)
	available, err = do(c, "virStoragePoolGetInfo", pool.Name, func(h *Host) (uint64, error) {
		p, err := h.poolOf(pool)
		switch {
		case p == nil:
			return 0, err
		case err != nil: // which it tells of one that is stopped, too
			state = uint8(libvirt.StoragePoolInactive)
			return 0, nil
		}
		if h.PoolFree == 0 {
			return 1 << 40, nil
		}
		return h.PoolFree, nil
	})
	if state != uint8(libvirt.StoragePoolRunning) {
		return state, 0, 0, 0, err
	}
	return state, 2 << 40, 2<<40 - available, available, err
}

// StoragePoolRefresh implements the function of go-libvirt.
func (c *Conn) StoragePoolRefresh(pool libvirt.StoragePool, _ uint32) error {
	return run(c, "virStoragePoolRefresh", pool.Name, func(h *Host) error {
		_, err := h.poolOf(pool)
		return err
	})
}

// StorageVolLookupByName implements the function of go-libvirt.
func (c *Conn) StorageVolLookupByName(pool libvirt.StoragePool, name string) (libvirt.StorageVol, error) {
	return do(c, "virStorageVolLookupByName", name, func(h *Host) (libvirt.StorageVol, error) {
		p, err := h.poolOf(pool)
		if err != nil {
			return libvirt.StorageVol{}, err
		}
		if p.volumes[name] == nil {
			return libvirt.StorageVol{}, Errorf(libvirt.ErrNoStorageVol, "Storage volume not found: no storage vol with matching name '%s'", name)
		}
		return libvirt.StorageVol{Pool: pool.Name, Name: name, Key: p.target + "/" + name}, nil
	})
}

// StorageVolGetPath implements the function of go-libvirt.
func (c *Conn) StorageVolGetPath(vol libvirt.StorageVol) (string, error) {
	return do(c, "virStorageVolGetPath", vol.Name, func(h *Host) (string, error) {
		if _, err := h.volumeOf(vol); err != nil {
			return "", err
		}
		return h.pools[vol.Pool].target + "/" + vol.Name, nil
	})
}

// StorageVolGetInfoFlags implements the function of go-libvirt. As of real ones,
// the capacity of a qcow2 file is its virtual size.
func (c *Conn) StorageVolGetInfoFlags(vol libvirt.StorageVol, _ uint32) (typ int8, capacity, physical uint64, err error) {
	v, err := do(c, "virStorageVolGetInfoFlags", vol.Name, func(h *Host) (volume, error) {
		v, err := h.volumeOf(vol)
		if err != nil {
			return volume{}, err
		}
		return *v, nil
	})
	if size, ok := virtualSize(v.content); ok {
		v.capacity = size
	}
	return 0, max(v.capacity, uint64(len(v.content))), uint64(len(v.content)), err
}

// StorageVolCreateXML implements the function of go-libvirt.
func (c *Conn) StorageVolCreateXML(pool libvirt.StoragePool, text string, _ libvirt.StorageVolCreateFlags) (libvirt.StorageVol, error) {
	var x libvirtxml.StorageVolume
	if err := x.Unmarshal(text); err != nil || x.Capacity == nil || x.Capacity.Unit != "bytes" {
		return libvirt.StorageVol{}, Errorf(libvirt.ErrXMLError, "XML error: bad volume definition")
	}
	return do(c, "virStorageVolCreateXML", x.Name, func(h *Host) (libvirt.StorageVol, error) {
		p, err := h.poolOf(pool)
		if err != nil {
			return libvirt.StorageVol{}, err
		}
		if p.volumes[x.Name] != nil {
			return libvirt.StorageVol{}, Errorf(libvirt.ErrStorageVolExist, "storage volume '%s' exists already", x.Name)
		}
		v := &volume{changed: time.Now(), capacity: x.Capacity.Value, format: x.Target.Format.Type}
		if b := x.BackingStore; b != nil {
			if b.Format == nil || h.fileOf(b.Path) == nil {
				return libvirt.StorageVol{}, Errorf(libvirt.ErrSystemError, "qemu-img: %s: Could not open '%s': No such file or directory", x.Name, b.Path)
			}
			v.backing = b.Path
		}
		p.volumes[x.Name] = v
		return libvirt.StorageVol{Pool: pool.Name, Name: x.Name, Key: p.target + "/" + x.Name}, nil
	})
}

// StorageVolDelete implements the function of go-libvirt.
func (c *Conn) StorageVolDelete(vol libvirt.StorageVol, _ libvirt.StorageVolDeleteFlags) error {
	return run(c, "virStorageVolDelete", vol.Name, func(h *Host) error {
		if _, err := h.volumeOf(vol); err != nil {
			return err
		}
		delete(h.pools[vol.Pool].volumes, vol.Name)
		return nil
	})
}

// StorageVolUpload implements the function of go-libvirt. Like real ones it
// succeeds when the volume is deleted meanwhile, and when the stream is shorter
// than its length; a stream that fails leaves a part.
func (c *Conn) StorageVolUpload(vol libvirt.StorageVol, stream io.Reader, offset, length uint64, _ libvirt.StorageVolUploadFlags) error {
	call, err := c.begin("virStorageVolUpload", vol.Name)
	if err != nil {
		return err
	}
	c.h.mu.Lock()
	v, err := c.h.volumeOf(vol)
	if err == nil {
		v.reach(offset)
	}
	c.h.mu.Unlock()
	if err != nil {
		return err
	}
	if err := c.receive(v, stream, offset, length); err != nil {
		return err
	}
	c.h.mu.Lock()
	after := c.h.After
	c.h.mu.Unlock()
	return c.hook(after, call)
}

func (c *Conn) receive(v *volume, stream io.Reader, offset, length uint64) error {
	buf := make([]byte, 4<<20)
	for at := offset; ; {
		n, err := stream.Read(buf)
		if length > 0 && at+uint64(n) > offset+length {
			return Errorf(libvirt.ErrInternalError, "cannot write to stream: No space left on device")
		}
		if writeErr := c.write(v, buf[:n], at); writeErr != nil {
			return writeErr
		}
		at += uint64(n)
		if err == io.EOF { //nolint:errorlint // a stream's end.
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// reach makes the content at least that long.
func (v *volume) reach(length uint64) {
	if missing := int(length) - len(v.content); missing > 0 { //nolint:gosec // small.
		v.content = append(v.content, make([]byte, missing)...)
	}
}

func (c *Conn) write(v *volume, data []byte, at uint64) error {
	select {
	case <-c.cut:
		return ErrCut
	default:
	}
	c.h.mu.Lock()
	defer c.h.mu.Unlock()
	if c.h.PoolBytes > 0 && c.h.used()+uint64(len(data)) > c.h.PoolBytes {
		return Errorf(libvirt.ErrSystemError, "cannot write to stream: No space left on device")
	}
	v.changed = time.Now()
	v.reach(at + uint64(len(data)))
	copy(v.content[at:], data)
	return nil
}

// StorageVolDownload implements the function of go-libvirt.
func (c *Conn) StorageVolDownload(vol libvirt.StorageVol, stream io.Writer, offset, length uint64, _ libvirt.StorageVolDownloadFlags) error {
	content, err := do(c, "virStorageVolDownload", vol.Name, func(h *Host) ([]byte, error) {
		v, err := h.volumeOf(vol)
		if err != nil {
			return nil, err
		}
		size := uint64(len(v.content))
		from := min(offset, size)
		to := size
		if length > 0 {
			to = min(from+length, size)
		}
		return slices.Clone(v.content[from:to]), nil
	})
	if err != nil {
		return err
	}
	_, err = stream.Write(content)
	return err
}

// StoragePoolListAllVolumes implements the function of go-libvirt.
func (c *Conn) StoragePoolListAllVolumes(pool libvirt.StoragePool, _ int32, _ uint32) ([]libvirt.StorageVol, uint32, error) {
	vols, err := do(c, "virStoragePoolListAllVolumes", pool.Name, func(h *Host) (vols []libvirt.StorageVol, err error) {
		p, err := h.poolOf(pool)
		if err != nil {
			return nil, err
		}
		for _, name := range sortedKeys(p.volumes) {
			vols = append(vols, libvirt.StorageVol{Pool: pool.Name, Name: name, Key: p.target + "/" + name})
		}
		return vols, nil
	})
	return vols, uint32(len(vols)), err //nolint:gosec // few.
}

// StorageVolGetXMLDesc implements the function of go-libvirt.
func (c *Conn) StorageVolGetXMLDesc(vol libvirt.StorageVol, _ uint32) (string, error) {
	return do(c, "virStorageVolGetXMLDesc", vol.Name, func(h *Host) (string, error) {
		v, err := h.volumeOf(vol)
		if err != nil {
			return "", err
		}
		capacity, ok := virtualSize(v.content)
		if !ok {
			capacity = max(v.capacity, uint64(len(v.content)))
		}
		x := libvirtxml.StorageVolume{
			Type: "file", Name: vol.Name, Key: vol.Key,
			Capacity:   &libvirtxml.StorageVolumeSize{Unit: "bytes", Value: capacity},
			Allocation: &libvirtxml.StorageVolumeSize{Unit: "bytes", Value: uint64(len(v.content))},
			Physical:   &libvirtxml.StorageVolumeSize{Unit: "bytes", Value: uint64(len(v.content))},
			Target: &libvirtxml.StorageVolumeTarget{
				Path: vol.Key, Format: &libvirtxml.StorageVolumeTargetFormat{Type: v.format},
				Timestamps: &libvirtxml.StorageVolumeTargetTimestamps{Mtime: fmt.Sprintf("%d.%09d", v.changed.Unix(), v.changed.Nanosecond())},
			},
		}
		if v.backing != "" {
			x.BackingStore = &libvirtxml.StorageVolumeBackingStore{Path: v.backing}
		}
		return x.Marshal()
	})
}
