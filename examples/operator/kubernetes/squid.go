package kubernetes

import (
	"encoding/base64"
	"errors"
	"fmt"

	"sigs.k8s.io/yaml"

	"github.com/egressfleet/egress/cloudinit"
)

// containerLines suit squid.conf to a container without privileges and with a
// read-only root: the log goes to the standard error by the option -d, and nobody
// asks for the process ID.
var containerLines = []string{
	"pid_filename none",
	"cache_log /dev/null",
	"coredump_dir /var/spool/squid",
	"pinger_enable off",
}

// usersPath is where squid.conf looks for the password file.
const usersPath = confDir + "/" + keyUsers

// squid describes the proxy of one instance.
func (c Config) squid(uid, username, password string) cloudinit.Squid {
	s := cloudinit.Squid{
		Port: c.Port, Clients: c.Clients, ConnectPorts: c.ConnectPorts, AllowDestinations: c.AllowDestinations,
		FileDescriptors: c.FileDescriptors, SaltSeed: uid, ExtraConf: append(containerLines[:len(containerLines):len(containerLines)], c.ExtraConf...),
	}
	if username != "" || password != "" {
		s.Users = []cloudinit.SquidUser{{Name: username, Password: cloudinit.Secret(password)}}
	}
	if len(s.Users) == 0 && len(s.Clients) == 0 {
		s.Clients = privateNetworks
	}
	return s
}

// credentials are those of one instance; both empty for none.
func (c Config) credentials(uid string) (username, password string) {
	if c.Credentials == nil {
		return "", ""
	}
	return c.Credentials(uid)
}

// files are the contents of an instance's Secret, by key.
func (c Config) files(uid string, userData []byte) (map[string][]byte, error) {
	username, password := c.credentials(uid)
	s := c.squid(uid, username, password)
	files := map[string][]byte{}
	if len(userData) > 0 {
		files[keyUserData] = append([]byte(nil), userData...)
	} else {
		conf, err := s.Conf()
		if err != nil {
			return nil, err
		}
		files[keyConf] = conf
	}
	if len(s.Users) == 0 {
		return files, nil
	}
	users, err := passwordFile(s)
	files[keyUsers] = users
	return files, err
}

// passwordFile takes the password file out of the cloud-config that would write
// it on a machine.
func passwordFile(s cloudinit.Squid) ([]byte, error) {
	document, err := s.UserData()
	if err != nil {
		return nil, err
	}
	var config struct {
		Files []struct {
			Path    string `json:"path"`
			Content string `json:"content"`
		} `json:"write_files"`
	}
	if err := yaml.Unmarshal(document, &config); err != nil {
		return nil, errors.New("the cloud-config of Squid is no YAML")
	}
	for _, f := range config.Files {
		if f.Path == usersPath {
			return base64.StdEncoding.DecodeString(f.Content)
		}
	}
	return nil, fmt.Errorf("the cloud-config of Squid has no file %s", usersPath)
}
