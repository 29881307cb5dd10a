//! A scripted SMTP server: usual answers, except where the script says otherwise.

use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use tokio::{
    io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufStream},
    net::{TcpListener, TcpStream},
};
use tokio_rustls::TlsAcceptor;

/// What the server does at an event.
pub enum Act {
    /// The usual answer.
    Usual,
    /// This answer instead (lines without the last CRLF).
    Say(&'static str),
    /// This answer, and then the connection is closed.
    SayAndClose(&'static str),
    /// The connection is closed without an answer.
    Close,
    /// Nothing, ever.
    Silence,
}

/// Asked with the connection's number (from 0), the messages it has taken, and the event: a command line, `<greet>`,
/// `<body>` (the first octets of a body are there) or `<dot>`.
pub type Script = fn(connection: usize, messages: usize, event: &str) -> Act;

pub struct Server {
    pub addr: SocketAddr,
    /// Every event of every connection.
    pub log: Arc<Mutex<Vec<String>>>,
    /// Bodies as received, before unstuffing; chunks as they are.
    pub bodies: Arc<Mutex<Vec<String>>>,
    pub connections: Arc<AtomicUsize>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

trait Duplex: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Duplex for T {}
type Line = BufStream<Box<dyn Duplex>>;

#[derive(Clone)]
pub struct Options {
    pub ehlo: &'static str,
    pub script: Script,
    pub tls: Option<TlsAcceptor>,
    pub implicit_tls: bool,
}

pub const PIPELINING: &str =
    "250-test\r\n250-PIPELINING\r\n250-SIZE 10000\r\n250-SMTPUTF8\r\n250-8BITMIME\r\n250 ENHANCEDSTATUSCODES";
pub const CHUNKING: &str = "250-test\r\n250-PIPELINING\r\n250-CHUNKING\r\n250-SIZE 10000\r\n250-SMTPUTF8\r\n250-8BITMIME\r\n250 ENHANCEDSTATUSCODES";
pub const PLAIN: &str = "250 test";

impl Server {
    pub async fn start(script: Script) -> Self {
        Self::offering(PIPELINING, script).await
    }

    pub async fn offering(ehlo: &'static str, script: Script) -> Self {
        Self::with(Options { ehlo, script, tls: None, implicit_tls: false }).await
    }

    pub async fn with(options: Options) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let (log, bodies) = (Arc::new(Mutex::new(Vec::new())), Arc::new(Mutex::new(Vec::new())));
        let connections = Arc::new(AtomicUsize::new(0));
        let (task_log, task_bodies, task_connections) = (log.clone(), bodies.clone(), connections.clone());
        let task = tokio::spawn(async move {
            let mut sessions = tokio::task::JoinSet::new();
            while let Ok((socket, _)) = listener.accept().await {
                let number = task_connections.fetch_add(1, Ordering::SeqCst);
                sessions.spawn(session(socket, number, options.clone(), task_log.clone(), task_bodies.clone()));
            }
        });
        Self { addr, log, bodies, connections, task }
    }

    pub fn count(&self, event: &str) -> usize {
        self.log.lock().unwrap().iter().filter(|line| line.starts_with(event)).count()
    }
}

async fn session(
    socket: TcpStream,
    number: usize,
    options: Options,
    log: Arc<Mutex<Vec<String>>>,
    bodies: Arc<Mutex<Vec<String>>>,
) {
    let boxed: Box<dyn Duplex> = match (&options.tls, options.implicit_tls) {
        (Some(tls), true) => match tls.accept(socket).await {
            Ok(stream) => Box::new(stream),
            Err(_) => return,
        },
        _ => Box::new(socket),
    };
    let mut stream: Line = BufStream::new(boxed);
    let mut messages = 0;
    if act(&mut stream, (options.script)(number, 0, "<greet>"), "220 test ESMTP").await.is_none() {
        return;
    }
    let mut line = String::new();
    let mut has_recipient = false;
    loop {
        line.clear();
        if stream.read_line(&mut line).await.unwrap_or(0) == 0 {
            log.lock().unwrap().push("<closed>".into());
            return;
        }
        let command = line.trim_end().to_owned();
        log.lock().unwrap().push(command.clone());
        let verb = command.split(' ').next().unwrap_or("").to_ascii_uppercase();
        let mut chunk = Vec::new();
        if verb == "BDAT" {
            chunk.resize(command.split(' ').nth(1).unwrap().parse().unwrap(), 0);
            if stream.read_exact(&mut chunk).await.is_err() {
                log.lock().unwrap().push("<closed in body>".into());
                return;
            }
        }
        let usual = match verb.as_str() {
            "BDAT" if !has_recipient => "503 5.5.1 no recipient",
            "BDAT" => "250 2.0.0 queued as 42",
            "EHLO" => options.ehlo,
            "DATA" if !has_recipient => "503 5.5.1 no recipient",
            "DATA" => "354 go ahead",
            "QUIT" => "221 bye",
            "STARTTLS" => "220 ready",
            "AUTH" => "235 2.7.0 welcome",
            _ => "250 2.0.0 ok",
        };
        let Some(said) = act(&mut stream, (options.script)(number, messages, &command), usual).await else { return };
        match verb.as_str() {
            "RCPT" => has_recipient = said.starts_with('2'),
            "MAIL" | "RSET" => has_recipient = false,
            "QUIT" => return,
            "BDAT" if said.starts_with('2') && has_recipient => {
                has_recipient = false;
                bodies.lock().unwrap().push(String::from_utf8(chunk).unwrap());
                messages += 1;
            }
            "STARTTLS" if said.starts_with('2') => {
                let Some(tls) = &options.tls else { return };
                let Ok(encrypted) = tls.accept(stream.into_inner()).await else { return };
                stream = BufStream::new(Box::new(encrypted));
            }
            "DATA" if said.starts_with('3') => {
                has_recipient = false;
                let mut body = String::new();
                loop {
                    line.clear();
                    if stream.read_line(&mut line).await.unwrap_or(0) == 0 {
                        log.lock().unwrap().push("<closed in body>".into());
                        return;
                    }
                    if line == ".\r\n" {
                        break;
                    }
                    let first = body.is_empty();
                    body.push_str(&line);
                    if first {
                        match (options.script)(number, messages, "<body>") {
                            Act::Usual => {}
                            other => {
                                act(&mut stream, other, "").await;
                                return;
                            }
                        }
                    }
                }
                log.lock().unwrap().push("<dot>".into());
                if act(&mut stream, (options.script)(number, messages, "<dot>"), "250 2.0.0 queued as 42")
                    .await
                    .is_none()
                {
                    return;
                }
                bodies.lock().unwrap().push(body);
                messages += 1;
            }
            _ => {}
        }
    }
}

/// Does what the script says; `None` ends the session.
async fn act(stream: &mut Line, act: Act, usual: &'static str) -> Option<&'static str> {
    let (said, stay) = match act {
        Act::Usual => (usual, true),
        Act::Say(text) => (text, true),
        Act::SayAndClose(text) => (text, false),
        Act::Close => return None,
        Act::Silence => std::future::pending().await,
    };
    stream.write_all(format!("{said}\r\n").as_bytes()).await.ok()?;
    stream.flush().await.ok()?;
    stay.then_some(said)
}
