// Package fixtures stands in for a part of the package of the same name: what its callers take for an API server of
// extensions in their own process is our server in another one.
package fixtures

import (
	"errors"
	"os"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"k8s.io/apiextensions-apiserver/pkg/apiserver"
	"k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	serveroptions "k8s.io/apiextensions-apiserver/pkg/cmd/server/options"
	servertesting "k8s.io/apiextensions-apiserver/pkg/cmd/server/testing"
	"k8s.io/apiextensions-apiserver/test/integration/storage"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"karmada-rs.test/kubernetes-integration/launch"
)

// StartDefaultServer starts our server. Callers of the original write into namespaces that do not exist there.
func StartDefaultServer(t servertesting.Logger, flags ...string) (func(), *rest.Config, *serveroptions.CustomResourceDefinitionsServerOptions, error) {
	test, ok := t.(testing.TB)
	if !ok {
		return nil, nil, nil, errors.New("not called from a test")
	}
	test.Helper()
	wishes := launch.Understand(flags)
	if wishes.Unmet == "" {
		wishes.Unmet = launch.GateUnmet()
	}
	if wishes.Unmet != "" {
		test.Skipf("left out: %s", wishes.Unmet)
	}
	server, err := launch.Start(test, wishes.Options)
	if err != nil {
		return nil, nil, nil, err
	}
	server.LendNamespaces()
	storage.Server = server.Config
	return server.Stop, server.Config, serveroptions.NewCustomResourceDefinitionsServerOptions(os.Stdout, os.Stderr), nil
}

// StartDefaultServerWithConfigAccess is for tests that reach into the process.
func StartDefaultServerWithConfigAccess(t servertesting.Logger, _ ...string) (func(), *rest.Config, apiserver.CompletedConfig, error) {
	return nil, nil, apiserver.CompletedConfig{}, leaveOut(t, "reaches into the server's process")
}

// StartDefaultServerWithClients starts our server and returns clients for it.
func StartDefaultServerWithClients(t servertesting.Logger, flags ...string) (func(), clientset.Interface, dynamic.Interface, error) {
	stop, config, _, err := StartDefaultServer(t, flags...)
	if err != nil {
		return nil, nil, nil, err
	}
	definitions, err := clientset.NewForConfig(config)
	if err != nil {
		stop()
		return nil, nil, nil, err
	}
	objects, err := dynamic.NewForConfig(config)
	if err != nil {
		stop()
		return nil, nil, nil, err
	}
	return stop, definitions, objects, nil
}

// StartDefaultServerWithClientsAndEtcd is for tests that look into etcd.
func StartDefaultServerWithClientsAndEtcd(t servertesting.Logger, _ ...string) (func(), clientset.Interface, dynamic.Interface, *clientv3.Client, string, error) {
	return nil, nil, nil, nil, "", leaveOut(t, "looks into etcd")
}

// IntegrationEtcdServers returns nothing: there is no etcd.
func IntegrationEtcdServers() []string { return nil }

func leaveOut(t servertesting.Logger, reason string) error {
	if test, ok := t.(testing.TB); ok {
		test.Skipf("left out: %s", reason)
	}
	return errors.New(reason)
}
