// The one program in the images of real pods. The name by which it is called says what it does:
// pause sleeps and reaps, nginx serves HTTP, nc talks TCP and UDP, curl and wget fetch. Outside of pods it is called with the argument
// "delay" and carries packets between two networks, late.
package main

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unsafe"
)

func main() {
	arguments := os.Args[1:]
	if len(arguments) == 4 && arguments[0] == "delay" {
		check("delay", delay(arguments[1], arguments[2], arguments[3]))
		return
	}
	switch filepath.Base(os.Args[0]) {
	case "pause":
		pause()
	case "nc":
		check("nc", netcat(arguments))
	case "curl", "wget":
		check("fetch", fetch(arguments))
	default:
		check("server", serve())
	}
}

func check(what string, err error) {
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", what, err)
		os.Exit(1)
	}
}

func ending() <-chan os.Signal {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGQUIT)
	return signals
}

// pause holds a pod's namespaces and reaps what is left to it.
func pause() {
	go func() {
		for {
			if pid, _ := syscall.Wait4(-1, nil, 0, nil); pid <= 0 {
				time.Sleep(time.Second)
			}
		}
	}()
	<-ending()
}

// delay makes two tap devices and passes every packet from one to the other, that many milliseconds late. It says "ready" once they exist.
func delay(milliseconds, first, second string) error {
	count, err := strconv.Atoi(milliseconds)
	if err != nil {
		return err
	}
	late := time.Duration(count) * time.Millisecond
	one, err := tap(first)
	if err != nil {
		return err
	}
	other, err := tap(second)
	if err != nil {
		return err
	}
	fmt.Println("ready")
	ends := make(chan error)
	go func() { ends <- carry(one, other, late) }()
	go func() { ends <- carry(other, one, late) }()
	return <-ends
}

// tap makes a tap device; it lives as long as its file. The kernel computes checksums and cuts large segments before it hands packets out.
func tap(name string) (*os.File, error) {
	const ioctl, tapWithoutHeader = 0x400454ca, 0x0002 | 0x1000
	descriptor, err := syscall.Open("/dev/net/tun", syscall.O_RDWR|syscall.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("/dev/net/tun: %w", err)
	}
	request := struct {
		name  [16]byte
		flags uint16
		rest  [22]byte
	}{flags: tapWithoutHeader}
	copy(request.name[:15], name)
	if _, _, code := syscall.Syscall(syscall.SYS_IOCTL, uintptr(descriptor), ioctl, uintptr(unsafe.Pointer(&request))); code != 0 {
		return nil, fmt.Errorf("tap %s: %w", name, code)
	}
	return os.NewFile(uintptr(descriptor), name), nil
}

// carry passes packets on in their order. As on a real line, what does not fit in between is lost.
func carry(from, to *os.File, late time.Duration) error {
	type packet struct {
		due   time.Time
		bytes []byte
	}
	line := make(chan packet, 4096)
	go func() {
		for next := range line {
			time.Sleep(time.Until(next.due))
			to.Write(next.bytes) // the device may be down at the moment
		}
	}()
	buffer := make([]byte, 64*1024)
	for {
		count, err := from.Read(buffer)
		if errors.Is(err, syscall.EIO) {
			time.Sleep(10 * time.Millisecond) // the device is not up yet
			continue
		}
		if err != nil {
			return err
		}
		select {
		case line <- packet{time.Now().Add(late), append([]byte(nil), buffer[:count]...)}:
		default:
		}
	}
}

// serve answers on $PORT or 80: "/" tells its name, "/load?s=30" burns one core for 30 seconds. It logs a line per second and per request.
func serve() error {
	name, err := os.Hostname()
	if err != nil {
		return err
	}
	port := os.Getenv("PORT")
	if port == "" {
		port = "80"
	}
	go func() {
		for count := 0; ; count++ {
			fmt.Printf("%s %s alive for %d s\n", time.Now().UTC().Format(time.RFC3339), name, count)
			time.Sleep(time.Second)
		}
	}()
	go func() {
		<-ending()
		os.Exit(0)
	}()
	http.HandleFunc("/load", func(answer http.ResponseWriter, request *http.Request) {
		seconds, err := strconv.Atoi(request.FormValue("s"))
		if err != nil {
			http.Error(answer, "say how long: /load?s=30", http.StatusBadRequest)
			return
		}
		rounds := 0
		for end := time.Now().Add(time.Duration(seconds) * time.Second); time.Now().Before(end); rounds++ {
		}
		fmt.Fprintf(answer, "%s did %d rounds\n", name, rounds)
	})
	http.HandleFunc("/", func(answer http.ResponseWriter, request *http.Request) {
		fmt.Printf("%s %s from %s\n", request.Method, request.URL.Path, request.RemoteAddr)
		fmt.Fprintf(answer, "this is %s, you are %s\n", name, request.RemoteAddr)
	})
	return http.ListenAndServe(":"+port, nil)
}

// fetch understands what specs say to curl and wget: -m or -T SECONDS, -H or --header HEADER, -O FILE, URL. It trusts every certificate.
func fetch(arguments []string) error {
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
	client := &http.Client{Transport: transport}
	headers, address, file := http.Header{}, "", ""
	value := func(at *int) string {
		if *at++; *at < len(arguments) {
			return arguments[*at]
		}
		return ""
	}
	for at := 0; at < len(arguments); at++ {
		switch option := arguments[at]; {
		case option == "-m" || option == "-T" || option == "--max-time" || option == "--connect-timeout":
			seconds, err := strconv.Atoi(value(&at))
			if err != nil {
				return fmt.Errorf("%s wants seconds", option)
			}
			client.Timeout = time.Duration(seconds) * time.Second
		case option == "-H" || option == "--header":
			key, content, _ := strings.Cut(value(&at), ":")
			headers.Set(key, strings.TrimSpace(content))
		case strings.HasPrefix(option, "-") && !strings.HasPrefix(option, "--") && strings.Contains(option, "O"):
			// -O FILE, -qO- and -qO FILE
			if _, file, _ = strings.Cut(option, "O"); file == "" {
				file = value(&at)
			}
		case !strings.HasPrefix(option, "-"):
			address = option
		}
	}
	if !strings.Contains(address, "://") {
		address = "http://" + address
	}
	request, err := http.NewRequest(http.MethodGet, address, nil)
	if err != nil {
		return err
	}
	request.Header = headers
	answer, err := client.Do(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	out := os.Stdout
	if file != "" && file != "-" {
		if out, err = os.Create(file); err != nil {
			return err
		}
	}
	if _, err = io.Copy(out, answer.Body); err != nil {
		return err
	}
	if answer.StatusCode >= 400 {
		return fmt.Errorf("the server said %s", answer.Status)
	}
	return nil
}

// netcat: nc [-l] [-k] [-u] [-v] [-p PORT] [-w SECONDS] [HOST PORT] [-e PROGRAM ARGUMENTS…]
func netcat(arguments []string) error {
	var listen, udp, again bool
	var port string
	var wait time.Duration
	var program, rest []string
scan:
	for at := 0; at < len(arguments); at++ {
		if !strings.HasPrefix(arguments[at], "-") {
			rest = append(rest, arguments[at])
			continue
		}
		for _, letter := range arguments[at][1:] {
			if strings.ContainsRune("pwe", letter) && at+1 >= len(arguments) {
				return fmt.Errorf("-%c wants a value", letter)
			}
			switch letter {
			case 'l':
				listen = true
			case 'k':
				again = true
			case 'u':
				udp = true
			case 'p':
				at++
				port = arguments[at]
				continue scan
			case 'w':
				at++
				seconds, err := strconv.Atoi(arguments[at])
				if err != nil {
					return err
				}
				wait = time.Duration(seconds) * time.Second
				continue scan
			case 'e':
				program = arguments[at+1:]
				break scan
			}
		}
	}
	if port == "" && listen && len(rest) > 0 {
		port = rest[len(rest)-1]
	}
	switch {
	case listen && udp:
		return hearUDP(port, again, program)
	case listen:
		return hearTCP(port, again, program)
	case len(rest) < 2:
		return fmt.Errorf("say where to: nc HOST PORT, or nc -l -p PORT")
	}
	network := "tcp"
	if udp {
		network = "udp"
	}
	connection, err := net.DialTimeout(network, net.JoinHostPort(rest[0], rest[1]), 10*time.Second)
	if err != nil {
		return err
	}
	if wait > 0 {
		connection.SetDeadline(time.Now().Add(wait))
	}
	go func() {
		io.Copy(connection, os.Stdin)
		if tcp, ok := connection.(*net.TCPConn); ok {
			tcp.CloseWrite()
		}
	}()
	io.Copy(os.Stdout, connection)
	return nil
}

func hearTCP(port string, again bool, program []string) error {
	listener, err := net.Listen("tcp", ":"+port)
	if err != nil {
		return err
	}
	for {
		connection, err := listener.Accept()
		if err != nil {
			return err
		}
		talk := func() {
			defer connection.Close()
			if len(program) == 0 {
				go io.Copy(connection, os.Stdin)
				io.Copy(os.Stdout, connection)
				return
			}
			command := exec.Command(program[0], program[1:]...)
			command.Stdout, command.Stderr = connection, os.Stderr
			command.Run()
		}
		if !again {
			talk()
			return nil
		}
		go talk()
	}
}

func hearUDP(port string, again bool, program []string) error {
	socket, err := net.ListenPacket("udp", ":"+port)
	if err != nil {
		return err
	}
	buffer := make([]byte, 64*1024)
	for {
		count, from, err := socket.ReadFrom(buffer)
		if err != nil {
			return err
		}
		if len(program) == 0 {
			os.Stdout.Write(buffer[:count])
			continue
		}
		answer, err := exec.Command(program[0], program[1:]...).Output()
		if err != nil {
			return err
		}
		socket.WriteTo(answer, from)
		if !again {
			return nil
		}
	}
}
