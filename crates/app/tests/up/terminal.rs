//! Commands at a terminal: `exec` and `logs -f` through a pseudo-terminal, against pods that a small server pretends.
//!
//! Simulated members run no containers; a kubelet's side of the conversation is played here: a program that shouts back what
//! it hears, tells the size of its terminal, and ends with the status that it is told. The pseudo-terminal is `script`'s.

use std::io::{Read, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use clusters::toolchain::{SHELL_PACKAGES, Toolchain};
use futures::{SinkExt, StreamExt};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::handshake::server::{Request, Response};

const PATIENCE: Duration = Duration::from_secs(180);

/// A server with one pod in each of two clusters.
struct Pods {
    _runtime: tokio::runtime::Runtime,
    folder: tempfile::TempDir,
}

impl Pods {
    fn start() -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("a runtime");
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).expect("a port");
        let address = listener.local_addr().expect("an address");
        runtime.spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream));
            }
        });
        let folder = tempfile::tempdir().expect("a folder");
        let config = format!(
            "apiVersion: v1\nkind: Config\nclusters: [{{name: c, cluster: {{server: 'http://{address}'}}}}]\nusers: [{{name: u, user: {{}}}}]\n\
             contexts: [{{name: x, context: {{cluster: c, user: u}}}}]\ncurrent-context: x\n"
        );
        std::fs::write(folder.path().join("config"), config).expect("a kubeconfig");
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_karmada"), folder.path().join("karmadactl"))
            .expect("a link");
        Self { _runtime: runtime, folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The start of a command line.
    fn program(&self) -> String {
        format!("{} --kubeconfig {}", self.path("karmadactl").display(), self.path("config").display())
    }

    fn command(&self, line: &str) -> Command {
        let mut command = Command::new("sh");
        command.arg("-c").arg(format!("{} {line}", self.program()));
        command
    }
}

async fn serve(mut stream: TcpStream) {
    let mut head = vec![0; 16 * 1024];
    let Ok(count) = stream.peek(&mut head).await else { return };
    let text = String::from_utf8_lossy(&head[..count]).into_owned();
    let path = text.split_whitespace().nth(1).unwrap_or("").to_owned();
    if path.contains("/exec?") {
        return play(stream, path).await;
    }
    // Small requests come in one piece.
    let _ = stream.read(&mut head).await;
    let inner = path.split_once("/proxy").map_or(path.as_str(), |(_, inner)| inner);
    let cluster = if path.contains("/member2/") { "two" } else { "one" };
    if inner.contains("/log?") {
        let _ = stream
            .write_all(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-type: text/plain\r\n\r\n")
            .await;
        for line in ["first", "second"] {
            let _ = stream.write_all(format!("{line} of {cluster}\n").as_bytes()).await;
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        return;
    }
    let body = answer(inner);
    let status = if body.is_null() { "404 Not Found" } else { "200 OK" };
    let body = body.to_string();
    let head = format!(
        "HTTP/1.1 {status}\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    let _ = stream.write_all(format!("{head}{body}").as_bytes()).await;
    let _ = stream.shutdown().await;
}

fn answer(path: &str) -> serde_json::Value {
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web", "namespace": "default"},
        "spec": {"containers": [{"name": "main"}]}, "status": {"phase": "Running"}});
    let cluster = |name: &str| json!({"apiVersion": "cluster.karmada.io/v1alpha1", "kind": "Cluster", "metadata": {"name": name}});
    match path.split('?').next().unwrap_or(path) {
        "/api" => {
            json!({"kind": "APIGroupDiscoveryList", "items": [{"metadata": {"name": ""}, "versions": [{"version": "v1",
            "resources": [{"resource": "pods", "singularResource": "pod", "responseKind": {"kind": "Pod"}, "scope": "Namespaced",
                "verbs": ["get", "list"]}]}]}]})
        }
        "/apis" => json!({"kind": "APIGroupDiscoveryList", "items": []}),
        "/api/v1/namespaces/default/pods/web" => pod,
        "/apis/cluster.karmada.io/v1alpha1/clusters" => {
            json!({"items": [cluster("member1"), cluster("member2")]})
        }
        "/apis/cluster.karmada.io/v1alpha1/clusters/member1" => cluster("member1"),
        _ => json!(null),
    }
}

/// The other side of `exec`: shouts, tells sizes, and ends at the end of stdin or when it is told `exit`.
async fn play(stream: TcpStream, path: String) {
    #[allow(clippy::result_large_err, reason = "the library's own type")]
    let choose = |_: &Request, mut response: Response| {
        response
            .headers_mut()
            .insert("sec-websocket-protocol", "v5.channel.k8s.io".parse().expect("a header"));
        Ok(response)
    };
    let Ok(socket) = tokio_tungstenite::accept_hdr_async(stream, choose).await else { return };
    let (mut send, mut receive) = socket.split();
    let say = |channel: u8, text: &str| Message::binary([&[channel], text.as_bytes()].concat());
    let ended = |code: i32| match code {
        0 => json!({"status": "Success"}).to_string(),
        code => json!({"status": "Failure", "reason": "NonZeroExitCode",
            "details": {"causes": [{"reason": "ExitCode", "message": code.to_string()}]}})
        .to_string(),
    };
    let _ = send.send(say(1, "hello from web\n")).await;
    if !path.contains("stdin=true") {
        let _ = send.send(say(2, "and an error\n")).await;
        let _ = send.send(say(3, &ended(0))).await;
        return;
    }
    let mut heard = String::new();
    while let Some(Ok(message)) = receive.next().await {
        let bytes = message.into_data();
        match bytes.split_first() {
            Some((0, text)) => {
                heard.push_str(&String::from_utf8_lossy(text));
                let _ = send.send(say(1, &String::from_utf8_lossy(text).to_uppercase())).await;
                if heard.contains("exit") {
                    let _ = send.send(say(3, &ended(7))).await;
                    return;
                }
            }
            Some((4, size)) => {
                let _ = send.send(say(1, &format!("size {}\r\n", String::from_utf8_lossy(size)))).await;
            }
            // The end of stdin.
            Some((255, _)) => {
                let _ = send.send(say(3, &ended(0))).await;
                return;
            }
            _ => {}
        }
    }
}

/// A command at a pseudo-terminal.
struct Terminal {
    child: Child,
    said: std::sync::Arc<std::sync::Mutex<String>>,
}

impl Terminal {
    fn open(line: &str) -> Self {
        let mut child = Command::new("script")
            .args(["--quiet", "--flush", "--return", "--command", line, "/dev/null"])
            .env("TERM", "xterm")
            .env_remove("NO_COLOR")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("script, of util-linux, runs");
        let said = std::sync::Arc::new(std::sync::Mutex::new(String::new()));
        let (mut out, heard) = (child.stdout.take().expect("a pipe"), said.clone());
        std::thread::spawn(move || {
            let mut buffer = [0; 1024];
            while let Ok(count) = out.read(&mut buffer) {
                if count == 0 {
                    return;
                }
                heard.lock().expect("nobody panics").push_str(&String::from_utf8_lossy(&buffer[..count]));
            }
        });
        Self { child, said }
    }

    fn said(&self) -> String {
        self.said.lock().expect("nobody panics").clone()
    }

    fn until(&self, words: &str) -> String {
        let start = Instant::now();
        while !self.said().contains(words) {
            assert!(start.elapsed() < PATIENCE, "{words:?} never came: {:?}", self.said());
            std::thread::sleep(Duration::from_millis(20));
        }
        self.said()
    }

    fn type_in(&mut self, text: &str) {
        let stdin = self.child.stdin.as_mut().expect("a pipe");
        stdin.write_all(text.as_bytes()).and_then(|()| stdin.flush()).expect("typed");
    }

    fn end(mut self) -> (Option<i32>, String) {
        let status = self.child.wait().expect("it ends");
        (status.code(), self.said())
    }
}

#[test]
fn a_program_in_a_container_is_heard_and_answered() {
    let pods = Pods::start();
    let output = pods.command("exec web -s members -C member1 -- date").output().expect("it runs");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "hello from web\n");
    assert_eq!(String::from_utf8_lossy(&output.stderr), "and an error\n");
    assert!(output.status.success());
    // What is piped in ends; the other side hears of it.
    let mut child = pods
        .command("exec -i web -s members -C member1 -- cat")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("it runs");
    child.stdin.take().expect("a pipe").write_all(b"piped").expect("written");
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "hello from web\nPIPED");
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn a_terminal_is_raw_resized_and_given_back() {
    let pods = Pods::start();
    let line = format!(
        "tty; stty rows 40 cols 100; {} exec -it web -s members -C member1 -- sh; echo \"ended with $?\"; stty -a",
        pods.program()
    );
    let mut terminal = Terminal::open(&line);
    let said = terminal.until("size {\"Height\":40,\"Width\":100}");
    let tty = said.lines().find(|line| line.starts_with("/dev/")).expect("a terminal").trim().to_owned();
    // Keys go over one by one, without a line's end.
    terminal.type_in("abc");
    terminal.until("ABC");
    let resized =
        Command::new("stty").args(["-F", &tty, "rows", "50", "cols", "120"]).status().expect("stty runs");
    assert!(resized.success());
    terminal.until("size {\"Height\":50,\"Width\":120}");
    terminal.type_in("exit");
    terminal.until("ended with 7");
    let (_, said) = terminal.end();
    assert!(said.contains("command terminated with exit code 7"), "{said}");
    assert!(said.contains(" icanon") && !said.contains("-icanon"), "the terminal is as it was: {said}");
}

#[test]
fn logs_of_several_clusters_have_their_colours() {
    let pods = Pods::start();
    let line = format!("{} logs -f web -C 'member*'", pods.program());
    let (status, said) = Terminal::open(&line).end();
    assert_eq!(status, Some(0), "{said}");
    for (colour, cluster, name) in [(36, "member1", "one"), (33, "member2", "two")] {
        for word in ["first", "second"] {
            let wanted = format!("\u{1b}[{colour}m[{cluster} pod/web/main]\u{1b}[0m {word} of {name}");
            assert!(said.contains(&wanted), "{wanted:?}\n{said:?}");
        }
    }
    // Without a terminal, there are no colours.
    let output = pods.command("logs -f web -C member1").output().expect("it runs");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "first of one\nsecond of one\n");
}

/// Runs a script in a shell with the program on its path.
fn shell(shell: &Shell, pods: &Pods, script: &str) -> String {
    let path = format!("{}:{}", pods.folder.path().display(), std::env::var("PATH").unwrap_or_default());
    let mut command = Command::new(&shell.program);
    let output = command
        .args(shell.arguments)
        .envs(shell.libraries.as_ref().map(|libraries| ("LD_LIBRARY_PATH", libraries)))
        .arg("-c")
        .arg(script)
        .env("PATH", path)
        .env("HOME", pods.folder.path())
        .output()
        .expect("it runs");
    assert!(output.status.success(), "{shell:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A shell, and how it runs a script without the settings of whoever runs the test.
#[derive(Debug)]
struct Shell {
    program: PathBuf,
    arguments: &'static [&'static str],
    libraries: Option<String>,
}

impl Shell {
    /// Finds a shell on this machine or among Debian's packages, or notes that the test is left out.
    fn find(name: &str) -> Option<Self> {
        let arguments: &[&str] = match name {
            "bash" => &["--norc", "--noprofile"],
            "zsh" => &["-f"],
            _ => &["--no-config"],
        };
        let paths = std::env::var_os("PATH").unwrap_or_default();
        let mut here = std::env::split_paths(&paths).map(|folder| folder.join(name));
        if let Some(program) = here.find(|path| path.is_file()) {
            return Some(Self { program, arguments, libraries: None });
        }
        let toolchain = Toolchain::from_env().expect("a cache");
        let fetched = toolchain.ensure_packages(SHELL_PACKAGES);
        match fetched.as_ref().map(|packages| (packages.program(name), packages.libraries())) {
            Ok((Some(program), libraries)) => Some(Self { program, arguments, libraries: Some(libraries) }),
            missing => {
                clusters::left_out(&format!("{name}, from this machine or from Debian: {missing:?}"));
                None
            }
        }
    }
}

/// Lines and what completes them.
fn completions(pods: &Pods) -> [(String, &'static str); 6] {
    let config = pods.path("config").display().to_string();
    [
        ("karmadactl unc".to_owned(), "uncordon"),
        ("karmadactl get pods -s mem".to_owned(), "members"),
        ("karmadactl get --no-h".to_owned(), "--no-headers"),
        (format!("karmadactl --kubeconfig {config} cordon mem"), "member1 member2"),
        (format!("karmadactl --kubeconfig {config} logs web -C member"), "member1 member2"),
        (format!("karmadactl --kubeconfig {config} logs web -C member1 -c "), "main"),
    ]
}

#[test]
fn bash_completes_commands_flags_and_names() {
    let Some(bash) = Shell::find("bash") else { return };
    let pods = Pods::start();
    for (line, wanted) in completions(&pods) {
        let script = format!(
            "source <(karmadactl completion bash); COMP_LINE='{line}'; COMP_POINT=${{#COMP_LINE}}\n\
             _karmadactl_complete karmadactl; echo \"${{COMPREPLY[*]}}\""
        );
        assert_eq!(shell(&bash, &pods, &script).trim().replace('\n', " "), wanted, "{line}");
    }
    // Bash takes a word with an equals sign apart.
    let line = "karmadactl get pods --operation-scope=k";
    let script = format!(
        "source <(karmadactl completion bash); COMP_LINE='{line}'; COMP_POINT=${{#COMP_LINE}}\n\
         _karmadactl_complete karmadactl; echo \"${{COMPREPLY[*]}}\""
    );
    assert_eq!(shell(&bash, &pods, &script).trim(), "karmada");
}

#[test]
fn fish_completes_commands_flags_and_names() {
    let Some(fish) = Shell::find("fish") else { return };
    let pods = Pods::start();
    for (line, wanted) in completions(&pods) {
        let script = format!("karmadactl completion fish | source; complete --do-complete '{line}'");
        let said = shell(&fish, &pods, &script);
        let words: Vec<&str> = said.lines().filter_map(|line| line.split('\t').next()).collect();
        assert_eq!(words.join(" "), wanted, "{line}");
    }
}

#[test]
fn zsh_completes_commands_flags_and_names() {
    let Some(zsh) = Shell::find("zsh") else { return };
    let pods = Pods::start();
    for (line, wanted) in completions(&pods) {
        // What zsh's own functions would be handed is printed instead.
        let script = format!(
            "compdef() {{ : }}; _files() {{ print files }}\n\
             _describe() {{ local -a list; list=(\"${{(@P)4}}\"); print -- \"${{(@)list%%:*}}\" }}\n\
             source <(karmadactl completion zsh)\nwords=(${{(z)${{:-{line}x}}}}); words[-1]=${{words[-1]%x}}; CURRENT=$#words\n_karmadactl"
        );
        assert_eq!(shell(&zsh, &pods, &script).trim(), wanted, "{line}");
    }
}
