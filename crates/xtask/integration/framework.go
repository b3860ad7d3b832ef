// Package framework stands in for one file of the package of the same name: what its callers take for a kube-apiserver
// in their own process is our server in another one. The configuration that callers may change is a real one; of the
// changes, authenticators are obeyed, in front of our server. Authorizers are not: how our server decides is what
// the tests are about.
package framework

import (
	"context"
	"net"
	"os"
	"path"
	"strings"
	"testing"

	"github.com/google/uuid"

	apiextensionsapiserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	client "k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/keyutil"
	aggregatorscheme "k8s.io/kube-aggregator/pkg/apiserver/scheme"
	"k8s.io/kubernetes/cmd/kube-apiserver/app"
	"k8s.io/kubernetes/cmd/kube-apiserver/app/options"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/controlplane"
	controlplaneapiserver "k8s.io/kubernetes/pkg/controlplane/apiserver"
	generatedopenapi "k8s.io/kubernetes/pkg/generated/openapi"
	"k8s.io/kubernetes/test/utils"

	"karmada-rs.test/kubernetes-integration/launch"
)

// TestServerSetup is what callers can change.
type TestServerSetup struct {
	ModifyServerRunOptions func(*options.ServerRunOptions)
	ModifyServerConfig     func(*controlplane.Config)
}

// TearDownFunc ends a server.
type TearDownFunc func()

// StartTestServer starts our server.
func StartTestServer(ctx context.Context, t testing.TB, setup TestServerSetup) (client.Interface, *rest.Config, TearDownFunc) {
	t.Helper()
	opts, before := plain(), plain()
	if setup.ModifyServerRunOptions != nil {
		setup.ModifyServerRunOptions(opts)
	}
	unmet, without := wanted(before, opts)
	if unmet == "" {
		unmet = launch.GateUnmet()
	}
	if unmet != "" {
		t.Skipf("left out: %s", unmet)
	}
	wishes := launch.Options{Data: opts.Etcd.StorageConfig.Prefix, TokenFile: opts.Authentication.TokenFile.TokenFile}
	var who authenticator.Request
	if setup.ModifyServerConfig != nil {
		who = changed(ctx, t, opts, setup.ModifyServerConfig)
	}
	server, err := launch.Start(t, wishes)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(strings.Join(opts.Authorization.Modes, ","), "AlwaysAllow") {
		server.AllowAll()
	}
	if who != nil {
		if err := server.Identify(who); err != nil {
			t.Fatal(err)
		}
	}
	// Outside of the former, which goes its own way.
	if without {
		server.LendNamespaces()
	}
	kubeClient, err := client.NewForConfig(server.Config)
	if err != nil {
		t.Fatal(err)
	}
	return kubeClient, server.Config, TearDownFunc(server.Stop)
}

// plain returns options as callers find them.
func plain() *options.ServerRunOptions {
	opts := options.NewServerRunOptions()
	opts.Etcd.StorageConfig.Prefix = path.Join("/", uuid.New().String(), "registry")
	opts.Etcd.StorageConfig.Transport.ServerList = []string{GetEtcdURL()}
	opts.ServiceClusterIPRanges = "10.0.0.0/24"
	opts.Authorization.Modes = []string{"Node", "RBAC"}
	opts.Authentication.APIAudiences = []string{"https://foo.bar.example.com"}
	opts.Authentication.ServiceAccounts.Issuers = []string{"https://foo.bar.example.com"}
	return opts
}

// wanted says which changed option our server cannot follow, and whether namespaces are not to be checked.
func wanted(before, after *options.ServerRunOptions) (string, bool) {
	disabled := sets.New(after.Admission.GenericAdmission.DisablePlugins...)
	modes := strings.Join(after.Authorization.Modes, ",")
	switch {
	case strings.Contains(modes, "ABAC"), strings.Contains(modes, "Webhook"):
		return "authorization mode " + modes, false
	case after.Authentication.WebHook != nil && after.Authentication.WebHook.ConfigFile != "":
		return "tokens reviewed by a webhook", false
	case after.Authentication.ClientCert != nil && after.Authentication.ClientCert.ClientCA != "":
		return "server option --client-ca-file", false
	case after.Authentication.BootstrapToken != nil && after.Authentication.BootstrapToken.Enable:
		return "", disabled.Has("NamespaceLifecycle")
	case after.GenericServerRunOptions.MaxRequestsInFlight != before.GenericServerRunOptions.MaxRequestsInFlight:
		return "server option --max-requests-inflight", false
	case after.GenericServerRunOptions.RequestTimeout != before.GenericServerRunOptions.RequestTimeout:
		return "server option --request-timeout", false
	case after.ServiceAccountSigningKeyFile != before.ServiceAccountSigningKeyFile:
		return "server option --service-account-signing-key-file", false
	case after.Authentication.ServiceAccounts.MaxExpiration != before.Authentication.ServiceAccounts.MaxExpiration:
		return "server option --service-account-max-token-expiration", false
	}
	return "", disabled.Has("NamespaceLifecycle")
}

// changed lets the caller change a real configuration and returns its authenticator if that is another one now.
func changed(ctx context.Context, t testing.TB, opts *options.ServerRunOptions, change func(*controlplane.Config)) authenticator.Request {
	dir := t.TempDir()
	key := path.Join(dir, "sa.key")
	private, err := utils.NewPrivateKey()
	if err != nil {
		t.Fatal(err)
	}
	encoded, err := keyutil.MarshalPrivateKeyToPEM(private)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(key, encoded, 0o600); err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	opts.SecureServing.Listener = listener
	opts.SecureServing.BindAddress = net.IPv4(127, 0, 0, 1)
	opts.SecureServing.ServerCert.CertDirectory = dir
	opts.ServiceAccountSigningKeyFile = key
	opts.Authentication.ServiceAccounts.KeyFiles = []string{key}
	completed, err := opts.Complete(ctx)
	if err != nil {
		t.Fatal(err)
	}
	generic, informers, storage, err := controlplaneapiserver.BuildGenericConfig(
		completed.CompletedOptions,
		[]*runtime.Scheme{legacyscheme.Scheme, apiextensionsapiserver.Scheme, aggregatorscheme.Scheme},
		controlplane.DefaultAPIResourceConfigSource(),
		generatedopenapi.GetOpenAPIDefinitions,
	)
	if err != nil {
		t.Fatal(err)
	}
	config, _, _, err := app.CreateKubeAPIServerConfig(completed, generic, informers, storage)
	if err != nil {
		t.Fatal(err)
	}
	was := config.ControlPlane.Generic.Authentication.Authenticator
	change(config)
	if now := config.ControlPlane.Generic.Authentication.Authenticator; now != was {
		return now
	}
	return nil
}
