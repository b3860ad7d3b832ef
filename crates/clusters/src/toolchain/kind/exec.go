// Package exec stands in for kind's package of this name. The suite uses it for one thing: to have docker say which address the
// container of a new cluster's node has. Whoever made the cluster knows.
package exec

import (
	"strings"

	"sigs.k8s.io/kind/pkg/cluster"
)

// Cmd is a command that was never started.
type Cmd struct{ node string }

// Command keeps the last argument, which names the node.
func Command(_ string, arguments ...string) Cmd {
	return Cmd{node: arguments[len(arguments)-1]}
}

// OutputLines returns the address.
func OutputLines(command Cmd) ([]string, error) {
	address, err := cluster.Ask("address", strings.TrimSuffix(command.node, "-control-plane"))
	if err != nil {
		return nil, err
	}
	return []string{address}, nil
}
