//! One SMTP session.

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
    InboundProtocol,
    command::{SIZE_MAX, SmtpCommand, parse},
    data::{MailData, Progress},
    lines::{LineFault, SmtpLines},
    store::{MailTarget, ReceivedMail, Store, StoreFault},
};

/// The longest a connection may last: one mail takes seconds.
const SESSION: Duration = Duration::from_secs(10 * 60);
/// Refusals in one connection; guessing a tag would take billions.
const FAULTS_MAX: u32 = 20;
/// Recipients one mail may have here: a return path is one recipient's, and each gets a copy of the mail's head.
const RECIPIENTS_MAX: usize = 10;
/// How long a mail may take, whatever its length; beyond it, so many octets must have come for each second.
const DATA_GRACE: Duration = Duration::from_secs(30);
const RATE_MIN: u64 = 4 * 1024;

/// State shared by all connections.
pub(super) struct InboundServer {
    pub(super) protocol: InboundProtocol,
    pub(super) hostname: String,
    pub(super) tls: Option<TlsAcceptor>,
    pub(super) store: Store,
}

/// How the session continues after a reply.
enum AfterReply {
    SmtpCommand,
    Tls,
    Close,
}

/// The envelope of the mail in progress.
#[derive(Debug, Default)]
struct InboundEnvelope {
    /// Set by MAIL: true if the sender is null.
    null_sender: Option<bool>,
    targets: Vec<MailTarget>,
}

/// The state of a connection.
pub(super) struct SmtpSession<S> {
    server: Arc<InboundServer>,
    lines: SmtpLines<S>,
    shutdown: CancellationToken,
    greeted: bool,
    secured: bool,
    faults: u32,
    envelope: InboundEnvelope,
}

impl SmtpSession<TcpStream> {
    /// Serves a connection to its end.
    pub(super) async fn run(
        server: Arc<InboundServer>,
        stream: TcpStream,
        shutdown: CancellationToken,
    ) -> io::Result<()> {
        stream.set_nodelay(true)?;
        let until = Instant::now() + SESSION;
        let mut session = Self::new(server.clone(), stream, shutdown.clone(), false);
        let greeting = format!("220 {} ready", server.hostname);
        session.lines.reply(&greeting).await?;
        let served = timeout_at(until, session.serve()).await.map_err(|_| io::ErrorKind::TimedOut)??;
        let (AfterReply::Tls, Some(tls)) = (served, &server.tls) else { return Ok(()) };
        // Bytes after STARTTLS were sent in the clear, perhaps by an attacker: the connection is dropped.
        if !session.lines.waiting().is_empty() {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let stream =
            timeout_at(until, tls.accept(session.lines.into_stream())).await.map_err(|_| io::ErrorKind::TimedOut)??;
        let mut session = SmtpSession::new(server, stream, shutdown, true);
        timeout_at(until, session.serve()).await.map_err(|_| io::ErrorKind::TimedOut)?.map(drop)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> SmtpSession<S> {
    fn new(server: Arc<InboundServer>, stream: S, shutdown: CancellationToken, secured: bool) -> Self {
        Self {
            server,
            lines: SmtpLines::new(stream),
            shutdown,
            greeted: false,
            secured,
            faults: 0,
            envelope: InboundEnvelope::default(),
        }
    }

    async fn serve(&mut self) -> io::Result<AfterReply> {
        let shutdown = self.shutdown.clone();
        loop {
            let line = tokio::select! {
                () = shutdown.cancelled() => {
                    self.lines.reply("421 4.3.2 Going down; come again").await?;
                    return Ok(AfterReply::Close);
                }
                line = self.lines.line() => line,
            };
            let next = match line {
                Ok(line) => self.obey(&line).await?,
                Err(LineFault::Gone) => return Ok(AfterReply::Close),
                Err(LineFault::TooLong) => {
                    self.lines.reply("500 5.5.2 Line too long").await?;
                    AfterReply::Close
                }
                Err(LineFault::Bare) => self.close_on_bare_ends().await?,
            };
            match next {
                AfterReply::SmtpCommand if self.faults >= FAULTS_MAX => {
                    self.lines.reply("421 4.7.0 Too many errors").await?;
                    return Ok(AfterReply::Close);
                }
                AfterReply::SmtpCommand => {}
                next => return Ok(next),
            }
        }
    }

    async fn close_on_bare_ends(&mut self) -> io::Result<AfterReply> {
        refused("bare_line_end");
        self.lines.reply("521 5.5.2 Lines end with CR LF and with nothing else").await?;
        Ok(AfterReply::Close)
    }

    async fn obey(&mut self, line: &str) -> io::Result<AfterReply> {
        let command = match parse(line) {
            Ok(command) => command,
            Err(reply) => return self.refuse(reply).await,
        };
        match command {
            SmtpCommand::Helo | SmtpCommand::Ehlo | SmtpCommand::Lhlo => self.greet(&command).await,
            SmtpCommand::Mail { .. } if !self.greeted => self.refuse("503 5.5.1 Say hello first").await,
            SmtpCommand::Mail { .. } if self.envelope.null_sender.is_some() => {
                self.refuse("503 5.5.1 One mail at a time").await
            }
            SmtpCommand::Mail { null_sender } => {
                self.envelope.null_sender = Some(null_sender);
                self.answer("250 2.1.0 Ok").await
            }
            SmtpCommand::Rcpt(address) => self.recipient(&address).await,
            SmtpCommand::Data => self.data().await,
            SmtpCommand::StartTls => self.start_tls().await,
            SmtpCommand::Rset => {
                self.envelope = InboundEnvelope::default();
                self.answer("250 2.0.0 Ok").await
            }
            SmtpCommand::Noop => self.answer("250 2.0.0 Ok").await,
            SmtpCommand::Vrfy => self.answer("252 2.1.5 Send and see").await,
            SmtpCommand::Quit => {
                self.lines.reply("221 2.0.0 Bye").await?;
                Ok(AfterReply::Close)
            }
        }
    }

    async fn greet(&mut self, command: &SmtpCommand) -> io::Result<AfterReply> {
        let fits = match self.server.protocol {
            InboundProtocol::Smtp => *command != SmtpCommand::Lhlo,
            InboundProtocol::Lmtp => *command == SmtpCommand::Lhlo,
        };
        if !fits {
            return self.refuse("500 5.5.1 Not the protocol spoken here").await;
        }
        self.greeted = true;
        self.envelope = InboundEnvelope::default();
        if *command == SmtpCommand::Helo {
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

    async fn recipient(&mut self, address: &str) -> io::Result<AfterReply> {
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

    async fn data(&mut self) -> io::Result<AfterReply> {
        let Some(null_sender) = self.envelope.null_sender else { return self.refuse("503 5.5.1 MAIL first").await };
        if self.envelope.targets.is_empty() {
            return self.refuse("503 5.5.1 No recipients").await;
        }
        self.lines.reply("354 Go on; end with <CR><LF>.<CR><LF>").await?;
        let (mut data, started) = (MailData::new(), Instant::now());
        loop {
            let (used, progress) = data.take(self.lines.waiting());
            self.lines.consume(used);
            match progress {
                Progress::Done => break,
                Progress::Bare => return self.close_on_bare_ends().await,
                // Twice the allowed size: the mail does not end.
                Progress::More if data.size() > SIZE_MAX * 2 => return Ok(AfterReply::Close),
                Progress::More if started.elapsed() > DATA_GRACE + Duration::from_secs(data.size() / RATE_MIN) => {
                    return Ok(AfterReply::Close);
                }
                Progress::More => self.lines.more().await?,
            }
        }
        let targets = std::mem::take(&mut self.envelope).targets;
        let copies = if self.server.protocol == InboundProtocol::Lmtp { targets.len() } else { 1 };
        let reply = if data.size() > SIZE_MAX {
            refused("too_large");
            "552 5.3.4 Larger than what is taken here"
        } else {
            let size = i32::try_from(data.size()).unwrap_or(i32::MAX);
            let mail = ReceivedMail { null_sender, size, head: data.into_head() };
            match self.server.store.keep(&targets, mail).await {
                Ok(()) => "250 2.0.0 Taken",
                Err(_) => "451 4.3.0 Not now; come again",
            }
        };
        // RFC 2033 §4.2: one reply for each recipient. They share one commit, so they get the same reply.
        for _ in 0..copies {
            self.lines.reply(reply).await?;
        }
        Ok(AfterReply::SmtpCommand)
    }

    async fn start_tls(&mut self) -> io::Result<AfterReply> {
        if self.server.tls.is_none() || self.secured {
            return self.refuse("503 5.5.1 Not offered").await;
        }
        self.lines.reply("220 2.0.0 Go on").await?;
        Ok(AfterReply::Tls)
    }

    async fn answer(&mut self, reply: &str) -> io::Result<AfterReply> {
        self.lines.reply(reply).await?;
        Ok(AfterReply::SmtpCommand)
    }

    async fn refuse(&mut self, reply: &str) -> io::Result<AfterReply> {
        self.faults += 1;
        self.answer(reply).await
    }
}

fn refused(why: &'static str) {
    Counter::InboundMailsTotal.add(1, [("outcome", why)]);
}
