// Package cluster stands in for kind's package of this name. Karmada's suite makes clusters with it; here they are made by whoever
// listens at the socket that KARMADA_RS_KIND names, one request per connection: a line of words, answered by a line.
package cluster

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
)

// Provider makes and removes clusters.
type Provider struct{}

// NewProvider needs nothing yet: the socket is used when a cluster is.
func NewProvider() *Provider { return &Provider{} }

type creation struct{ kubeconfig string }

// CreateOption changes how a cluster is made.
type CreateOption func(*creation)

// CreateWithKubeconfigPath says where the kubeconfig of the new cluster goes.
func CreateWithKubeconfigPath(path string) CreateOption {
	return func(wanted *creation) { wanted.kubeconfig = path }
}

// Create returns when the cluster is ready.
func (*Provider) Create(name string, options ...CreateOption) error {
	var wanted creation
	for _, option := range options {
		option(&wanted)
	}
	_, err := Ask("create", name, wanted.kubeconfig)
	return err
}

// Delete returns when nothing of the cluster is left.
func (*Provider) Delete(name, _ string) error {
	_, err := Ask("delete", name)
	return err
}

// Ask sends words, none of which may have blanks, and returns what is answered after "ok".
func Ask(words ...string) (string, error) {
	socket := os.Getenv("KARMADA_RS_KIND")
	if socket == "" {
		return "", errors.New("KARMADA_RS_KIND names no socket: this spec makes a cluster, and nobody is there to make it")
	}
	connection, err := net.Dial("unix", socket)
	if err != nil {
		return "", err
	}
	defer connection.Close()
	if _, err = fmt.Fprintln(connection, strings.Join(words, " ")); err != nil {
		return "", err
	}
	line, err := bufio.NewReader(connection).ReadString('\n')
	if err != nil {
		return "", fmt.Errorf("no answer to %q: %w", words[0], err)
	}
	if answer, fine := strings.CutPrefix(strings.TrimSpace(line), "ok"); fine {
		return strings.TrimSpace(answer), nil
	}
	return "", errors.New(strings.TrimSpace(line))
}
