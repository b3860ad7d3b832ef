// Writes what the crate knows about Kubernetes' types, by reflection over the published Go API modules.
package main

import (
	"fmt"
	"os"
)

func main() {
	switch {
	case len(os.Args) >= 4 && os.Args[1] == "types":
		writeTypes(os.Args[3:], os.Args[2])
	case len(os.Args) == 3 && os.Args[1] == "samples":
		writeSamples(os.Args[2])
	default:
		fmt.Fprintln(os.Stderr, "usage: gen types OUT OPENAPI_V3... | gen samples OUT")
		os.Exit(2)
	}
}
