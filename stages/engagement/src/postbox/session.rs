//! One connection.

use std::{io, sync::Arc, time::Duration};

use runtime::Counter;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    time::{Instant, timeout_at},
};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use super::{
    Protocol,
    command::{Command, SIZE_MAX, parse},
    data::{Data, Progress},
    lines::{LineFault, Lines},
    store::{Arrived, Store, StoreFault, Target},
};

/// The longest a connection may last: one mail takes seconds.
const SESSION: Duration = Duration::from_secs(10 * 60);
/// Refusals one connection is answered; who guesses tags needs billions.
const FAULTS_MAX: u32 = 20;
/// Recipients one mail may have here: a return path is one recipient's, and each gets a copy of the mail's head.
const RECIPIENTS_MAX: usize = 10;
/// How long a mail may take, whatever its length; beyond it, so many octets must have come for each second.
const DATA_GRACE: Duration = Duration::from_secs(30);
const RATE_MIN: u64 = 4 * 1024;

/// What all connections share.
pub(super) struct Server {
    pub(super) protocol: Protocol,
    pub(super) hostname: String,
    pub(super) tls: Option<TlsAcceptor>,
    pub(super) store: Store,
}

/// What comes after a reply.
enum Next {
    Command,
    Tls,
    Close,
}

/// A mail that is being announced.
#[derive(Debug, Default)]
struct Envelope {
    /// Set by MAIL: whether the sender is null.
    null_sender: Option<bool>,
    targets: Vec<Target>,
}

/// The state of a connection.
pub(super) struct Session<S> {
    server: Arc<Server>,
    lines: Lines<S>,
    shutdown: CancellationToken,
    greeted: bool,
    secured: bool,
    faults: u32,
    envelope: Envelope,
}

impl Session<TcpStream> {
    /// Serves a connection to its end.
    pub(super) async fn run(server: Arc<Server>, stream: TcpStream, shutdown: CancellationToken) -> io::Result<()> {
        stream.set_nodelay(true)?;
        let until = Instant::now() + SESSION;
        let mut session = Self::new(server.clone(), stream, shutdown.clone(), false);
        let greeting = format!("220 {} ready", server.hostname);
        session.lines.reply(&greeting).await?;
        let served = timeout_at(until, session.serve()).await.map_err(|_| io::ErrorKind::TimedOut)??;
        let (Next::Tls, Some(tls)) = (served, &server.tls) else { return Ok(()) };
        // What was sent along with STARTTLS was sent in the clear, perhaps by somebody between: none of it may count.
        if !session.lines.waiting().is_empty() {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let stream =
            timeout_at(until, tls.accept(session.lines.into_stream())).await.map_err(|_| io::ErrorKind::TimedOut)??;
        let mut session = Session::new(server, stream, shutdown, true);
        timeout_at(until, session.serve()).await.map_err(|_| io::ErrorKind::TimedOut)?.map(drop)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Session<S> {
    fn new(server: Arc<Server>, stream: S, shutdown: CancellationToken, secured: bool) -> Self {
        Self {
            server,
            lines: Lines::new(stream),
            shutdown,
            greeted: false,
            secured,
            faults: 0,
            envelope: Envelope::default(),
        }
    }

    async fn serve(&mut self) -> io::Result<Next> {
        let shutdown = self.shutdown.clone();
        loop {
            let line = tokio::select! {
                () = shutdown.cancelled() => {
                    self.lines.reply("421 4.3.2 Going down; come again").await?;
                    return Ok(Next::Close);
                }
                line = self.lines.line() => line,
            };
            let next = match line {
                Ok(line) => self.obey(&line).await?,
                Err(LineFault::Gone) => return Ok(Next::Close),
                Err(LineFault::TooLong) => {
                    self.lines.reply("500 5.5.2 Line too long").await?;
                    Next::Close
                }
                Err(LineFault::Bare) => self.close_on_bare_ends().await?,
            };
            match next {
                Next::Command if self.faults >= FAULTS_MAX => {
                    self.lines.reply("421 4.7.0 Too many errors").await?;
                    return Ok(Next::Close);
                }
                Next::Command => {}
                next => return Ok(next),
            }
        }
    }

    async fn close_on_bare_ends(&mut self) -> io::Result<Next> {
        refused("bare_line_end");
        self.lines.reply("521 5.5.2 Lines end with CR LF and with nothing else").await?;
        Ok(Next::Close)
    }

    async fn obey(&mut self, line: &str) -> io::Result<Next> {
        let command = match parse(line) {
            Ok(command) => command,
            Err(reply) => return self.refuse(reply).await,
        };
        match command {
            Command::Helo | Command::Ehlo | Command::Lhlo => self.greet(&command).await,
            Command::Mail { .. } if !self.greeted => self.refuse("503 5.5.1 Say hello first").await,
            Command::Mail { .. } if self.envelope.null_sender.is_some() => {
                self.refuse("503 5.5.1 One mail at a time").await
            }
            Command::Mail { null_sender } => {
                self.envelope.null_sender = Some(null_sender);
                self.answer("250 2.1.0 Ok").await
            }
            Command::Rcpt(address) => self.recipient(&address).await,
            Command::Data => self.data().await,
            Command::StartTls => self.start_tls().await,
            Command::Rset => {
                self.envelope = Envelope::default();
                self.answer("250 2.0.0 Ok").await
            }
            Command::Noop => self.answer("250 2.0.0 Ok").await,
            Command::Vrfy => self.answer("252 2.1.5 Send and see").await,
            Command::Quit => {
                self.lines.reply("221 2.0.0 Bye").await?;
                Ok(Next::Close)
            }
        }
    }

    async fn greet(&mut self, command: &Command) -> io::Result<Next> {
        let fits = match self.server.protocol {
            Protocol::Smtp => *command != Command::Lhlo,
            Protocol::Lmtp => *command == Command::Lhlo,
        };
        if !fits {
            return self.refuse("500 5.5.1 Not the protocol spoken here").await;
        }
        self.greeted = true;
        self.envelope = Envelope::default();
        if *command == Command::Helo {
            let reply = format!("250 {}", self.server.hostname);
            return self.answer(&reply).await;
        }
        let secure = if self.server.tls.is_some() && !self.secured { "250-STARTTLS\n" } else { "" };
        let reply = format!(
            "250-{}\n250-PIPELINING\n250-SIZE {SIZE_MAX}\n250-8BITMIME\n250-SMTPUTF8\n{secure}250 ENHANCEDSTATUSCODES",
            self.server.hostname
        );
        self.answer(&reply).await
    }

    async fn recipient(&mut self, address: &str) -> io::Result<Next> {
        if self.envelope.null_sender.is_none() {
            return self.refuse("503 5.5.1 MAIL first").await;
        }
        if self.envelope.targets.len() >= RECIPIENTS_MAX {
            return self.refuse("452 4.5.3 Too many recipients").await;
        }
        match self.server.store.target(address).await {
            Ok(target) => {
                self.envelope.targets.push(target);
                self.answer("250 2.1.5 Ok").await
            }
            Err(StoreFault::Unknown(why)) => {
                refused(why);
                self.refuse("550 5.1.1 No such address").await
            }
            Err(StoreFault::Away) => self.answer("451 4.3.0 Not now; come again").await,
        }
    }

    async fn data(&mut self) -> io::Result<Next> {
        let Some(null_sender) = self.envelope.null_sender else { return self.refuse("503 5.5.1 MAIL first").await };
        if self.envelope.targets.is_empty() {
            return self.refuse("503 5.5.1 No recipients").await;
        }
        self.lines.reply("354 Go on; end with <CR><LF>.<CR><LF>").await?;
        let (mut data, started) = (Data::new(), Instant::now());
        loop {
            let (used, progress) = data.take(self.lines.waiting());
            self.lines.consume(used);
            match progress {
                Progress::Done => break,
                Progress::Bare => return self.close_on_bare_ends().await,
                // Twice what is allowed: it does not end.
                Progress::More if data.size() > SIZE_MAX * 2 => return Ok(Next::Close),
                Progress::More if started.elapsed() > DATA_GRACE + Duration::from_secs(data.size() / RATE_MIN) => {
                    return Ok(Next::Close);
                }
                Progress::More => self.lines.more().await?,
            }
        }
        let targets = std::mem::take(&mut self.envelope).targets;
        let copies = if self.server.protocol == Protocol::Lmtp { targets.len() } else { 1 };
        let reply = if data.size() > SIZE_MAX {
            refused("too_large");
            "552 5.3.4 Larger than what is taken here"
        } else {
            let size = i32::try_from(data.size()).unwrap_or(i32::MAX);
            let mail = Arrived { null_sender, size, head: data.into_head() };
            match self.server.store.keep(&targets, mail).await {
                Ok(()) => "250 2.0.0 Taken",
                Err(_) => "451 4.3.0 Not now; come again",
            }
        };
        // RFC 2033 §4.2: one reply for each recipient. They share one commit, so they share their fate.
        for _ in 0..copies {
            self.lines.reply(reply).await?;
        }
        Ok(Next::Command)
    }

    async fn start_tls(&mut self) -> io::Result<Next> {
        if self.server.tls.is_none() || self.secured {
            return self.refuse("503 5.5.1 Not offered").await;
        }
        self.lines.reply("220 2.0.0 Go on").await?;
        Ok(Next::Tls)
    }

    async fn answer(&mut self, reply: &str) -> io::Result<Next> {
        self.lines.reply(reply).await?;
        Ok(Next::Command)
    }

    async fn refuse(&mut self, reply: &str) -> io::Result<Next> {
        self.faults += 1;
        self.answer(reply).await
    }
}

fn refused(why: &'static str) {
    Counter::InboundMailsTotal.add(1, [("outcome", why)]);
}
