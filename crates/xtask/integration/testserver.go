// Package testing stands in for the package of the same name: what its callers take for a kube-apiserver in their own
// process is our server in another one. Tests that want what our server has no switch for are left out, with the reason.
package testing

import (
	"crypto/rsa"
	"crypto/x509"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storageversion"
	restclient "k8s.io/client-go/rest"
	"k8s.io/kubernetes/cmd/kube-apiserver/app/options"
	"k8s.io/kubernetes/test/utils/ktesting"

	"karmada-rs.test/kubernetes-integration/launch"
)

// TearDownFunc ends a server.
type TearDownFunc func()

// TestServerInstanceOptions is what callers can ask for besides flags.
type TestServerInstanceOptions struct {
	SkipHealthzCheck       bool
	EnableCertAuth         bool
	StorageVersionWrapFunc func(storageversion.Manager) storageversion.Manager
	ProxyCA                *ProxyCA
	BinaryVersion          string
	RequestTimeout         time.Duration
}

// TestServer is a running server.
type TestServer struct {
	ClientConfig      *restclient.Config
	ServerOpts        *options.ServerRunOptions
	TearDownFn        TearDownFunc
	TmpDir            string
	EtcdClient        *clientv3.Client
	EtcdStoragePrefix string
}

// Logger is what callers hand over to be told.
type Logger interface {
	Helper()
	Errorf(format string, args ...interface{})
	Fatalf(format string, args ...interface{})
	Logf(format string, args ...interface{})
	Cleanup(func())
}

// ProxyCA is an authority for proxies that a caller brings along.
type ProxyCA struct {
	ProxySigningCert *x509.Certificate
	ProxySigningKey  *rsa.PrivateKey
}

// NewDefaultTestServerOptions returns what is asked for by nobody in particular.
func NewDefaultTestServerOptions() *TestServerInstanceOptions {
	return &TestServerInstanceOptions{EnableCertAuth: true}
}

// StartTestServer starts our server.
func StartTestServer(t ktesting.TB, instance *TestServerInstanceOptions, flags []string, storage *storagebackend.Config) (TestServer, error) {
	t.Helper()
	wishes := launch.Understand(flags)
	unmet := wishes.Unmet
	if instance != nil {
		switch {
		case instance.StorageVersionWrapFunc != nil:
			unmet = "reaches into the server's process"
		case instance.ProxyCA != nil:
			unmet = "brings its own authority for proxies"
		case instance.BinaryVersion != "":
			unmet = "emulates version " + instance.BinaryVersion
		case instance.RequestTimeout != 0:
			unmet = "server option --request-timeout"
		}
	}
	if unmet == "" {
		unmet = launch.GateUnmet()
	}
	if unmet != "" {
		t.Skipf("left out: %s", unmet)
	}
	wishes.Options.Data = storage.Prefix
	server, err := launch.Start(t, wishes.Options)
	if err != nil {
		return TestServer{}, err
	}
	if wishes.WithoutNamespaces {
		server.LendNamespaces()
	}
	etcd, _, err := GetEtcdClients(storage.Transport)
	if err != nil {
		server.Stop()
		return TestServer{}, err
	}
	return TestServer{
		ClientConfig: server.Config,
		ServerOpts:   options.NewServerRunOptions(),
		TearDownFn: func() {
			server.Stop()
			_ = etcd.Close()
		},
		TmpDir:            server.Dir,
		EtcdClient:        etcd,
		EtcdStoragePrefix: storage.Prefix,
	}, nil
}

// StartTestServerOrDie starts our server and ends the test if that fails.
func StartTestServerOrDie(t testing.TB, instance *TestServerInstanceOptions, flags []string, storage *storagebackend.Config) *TestServer {
	t.Helper()
	server, err := StartTestServer(t, instance, flags, storage)
	if err != nil {
		t.Fatalf("cannot start the server: %v", err)
	}
	return &server
}

// GetEtcdClients returns clients of the etcd that the frame of the tests starts. Our server does not use it: who looks
// there for objects finds none.
func GetEtcdClients(config storagebackend.TransportConfig) (*clientv3.Client, clientv3.KV, error) {
	client, err := clientv3.New(clientv3.Config{Endpoints: config.ServerList, DialTimeout: 20 * time.Second})
	if err != nil {
		return nil, nil, err
	}
	return client, clientv3.NewKV(client), nil
}
