//! One session.

use std::{io, time::Duration};

use base64::{Engine, engine::general_purpose::STANDARD};
use secrecy::ExposeSecret;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    time::Instant,
};

use super::{
    AfterAnswer, MailFault, MailHandler, MailProtocol, ReceivedMail, SmtpAnswer, SmtpServer,
    command::{Chunk, SmtpCommand, parse},
    content::{DataProgress, MailContent},
    wire::{LineFault, SmtpWire},
};

const TOO_LARGE: &str = "552 5.3.4 Larger than what is taken here";

pub(super) async fn run<H: MailHandler>(server: &SmtpServer<H>, stream: TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut session = SmtpSession::new(server, stream, false);
    let protocol = match server.settings.protocol {
        MailProtocol::Smtp => "ESMTP",
        MailProtocol::Lmtp => "LMTP",
    };
    session.wire.push_reply(&format!("220 {} {protocol}", server.settings.hostname));
    let (SessionEnd::StartTls, Some(tls)) = (session.serve().await?, &server.settings.tls) else { return Ok(()) };
    // Octets after STARTTLS were sent in the clear, perhaps by an attacker: the connection is dropped.
    if !session.wire.unread().is_empty() {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let stream = tls.accept(session.wire.into_stream()).await?;
    SmtpSession::new(server, stream, true).serve().await.map(drop)
}

pub(super) enum SessionEnd {
    Closed,
    /// It goes on with TLS.
    StartTls,
}

pub(super) struct SmtpSession<'a, S, H: MailHandler> {
    server: &'a SmtpServer<H>,
    wire: SmtpWire<S>,
    is_secure: bool,
    is_greeted: bool,
    is_authenticated: bool,
    faults: u32,
    /// There from an accepted MAIL on.
    transaction: Option<MailTransaction<H::Envelope>>,
}

pub(super) struct MailTransaction<E> {
    envelope: E,
    recipients: usize,
    /// What came by BDAT.
    chunks: Option<MailContent>,
}

impl<'a, S: AsyncRead + AsyncWrite + Unpin, H: MailHandler> SmtpSession<'a, S, H> {
    pub(super) fn new(server: &'a SmtpServer<H>, stream: S, is_secure: bool) -> Self {
        let settings = &server.settings;
        Self {
            server,
            wire: SmtpWire::new(stream, settings.silence_timeout, settings.bare_line_ends),
            is_secure,
            is_greeted: false,
            is_authenticated: settings.credentials.is_none(),
            faults: 0,
            transaction: None,
        }
    }

    pub(super) async fn serve(&mut self) -> io::Result<SessionEnd> {
        loop {
            let answered = match self.next_line().await {
                Ok(line) => match parse(&line) {
                    Ok(SmtpCommand::StartTls) if self.server.settings.tls.is_some() && !self.is_secure => {
                        self.wire.push_reply("220 2.0.0 Go on");
                        self.wire.flush().await?;
                        return Ok(SessionEnd::StartTls);
                    }
                    Ok(command) => self.obey(command).await,
                    Err(reply) => Ok(SmtpAnswer::reply(reply)),
                },
                Err(fault) => Err(fault),
            };
            let answer = match answered {
                Ok(answer) => answer,
                Err(LineFault::Gone) => return Ok(SessionEnd::Closed),
                Err(LineFault::Stopping) => SmtpAnswer::reply("421 4.3.2 Going down; come again"),
                Err(LineFault::TooLong) => SmtpAnswer::reply_and_close("500 5.5.2 Line too long"),
                Err(LineFault::BareLineEnd) => self.refuse_bare_line_end(),
                Err(LineFault::AuthUnreadable) => SmtpAnswer::reply("501 5.5.2 Not readable"),
                Err(LineFault::AuthCancelled) => SmtpAnswer::reply("501 5.7.0 AUTH cancelled"),
            };
            if !self.give(answer).await? {
                return Ok(SessionEnd::Closed);
            }
        }
    }

    async fn next_line(&mut self) -> Result<String, LineFault> {
        if let Some(line) = self.wire.received_line()? {
            return Ok(line);
        }
        tokio::select! {
            () = self.server.shutdown.cancelled() => Err(LineFault::Stopping),
            line = self.wire.line() => line,
        }
    }

    /// Gives an answer. `false`: the connection ends.
    async fn give(&mut self, answer: SmtpAnswer) -> io::Result<bool> {
        if let Some(delay) = answer.delay {
            self.wire.flush().await?;
            tokio::time::sleep(delay).await;
        }
        if answer.is_permanent_refusal() {
            self.faults += 1;
        }
        if let Some(reply) = &answer.reply {
            self.wire.push_reply(reply);
        }
        match answer.then {
            AfterAnswer::Continue if self.faults < self.server.settings.faults_max => return Ok(true),
            AfterAnswer::Continue => self.wire.push_reply("421 4.7.0 Too many errors"),
            AfterAnswer::Close => {}
            AfterAnswer::Abort => return Ok(false),
        }
        self.wire.flush().await?;
        Ok(false)
    }

    async fn obey(&mut self, command: SmtpCommand<'_>) -> Result<SmtpAnswer, LineFault> {
        Ok(match command {
            SmtpCommand::Helo | SmtpCommand::Ehlo | SmtpCommand::Lhlo => self.greet(command),
            SmtpCommand::Auth { mechanism, initial } => self.auth(mechanism, initial).await?,
            SmtpCommand::Mail { sender, size } => self.mail(sender, size),
            SmtpCommand::Rcpt(address) => self.recipient(address).await,
            SmtpCommand::Data => self.data().await?,
            SmtpCommand::Bdat(Some(chunk)) => self.bdat(chunk).await?,
            SmtpCommand::Bdat(None) => SmtpAnswer::reply_and_close("501 5.5.4 BDAT size [LAST]"),
            SmtpCommand::StartTls => SmtpAnswer::reply("503 5.5.1 Not offered"),
            SmtpCommand::Rset => {
                self.transaction = None;
                SmtpAnswer::reply("250 2.0.0 Ok")
            }
            SmtpCommand::Noop => SmtpAnswer::reply("250 2.0.0 Ok"),
            SmtpCommand::Vrfy => SmtpAnswer::reply("252 2.1.5 Send and see"),
            SmtpCommand::Quit => SmtpAnswer::reply_and_close("221 2.0.0 Bye"),
        })
    }

    fn greet(&mut self, command: SmtpCommand<'_>) -> SmtpAnswer {
        let settings = &self.server.settings;
        if (settings.protocol == MailProtocol::Lmtp) != (command == SmtpCommand::Lhlo) {
            return SmtpAnswer::reply("500 5.5.1 Not the protocol spoken here");
        }
        self.is_greeted = true;
        self.transaction = None;
        let hostname = &settings.hostname;
        if command == SmtpCommand::Helo {
            return SmtpAnswer::reply(format!("250 {hostname}"));
        }
        let tls = if settings.tls.is_some() && !self.is_secure { "250-STARTTLS\r\n" } else { "" };
        let auth = if settings.credentials.is_some() { "250-AUTH PLAIN LOGIN\r\n" } else { "" };
        let size = settings.size_max;
        SmtpAnswer::reply(format!(
            "250-{hostname}\r\n250-PIPELINING\r\n250-8BITMIME\r\n250-SMTPUTF8\r\n250-CHUNKING\r\n250-ENHANCEDSTATUSCODES\r\n{tls}{auth}250 SIZE {size}"
        ))
    }

    /// `AUTH PLAIN` and `AUTH LOGIN` (RFC 4954, RFC 4616).
    async fn auth(&mut self, mechanism: &str, initial: Option<&str>) -> Result<SmtpAnswer, LineFault> {
        let server = self.server;
        let Some(own) = &server.settings.credentials else {
            return Ok(SmtpAnswer::reply("502 5.5.1 AUTH is not offered"));
        };
        if self.is_authenticated || !self.is_greeted || self.transaction.is_some() {
            return Ok(SmtpAnswer::reply("503 5.5.1 AUTH does not belong here"));
        }
        let is_plain = mechanism.eq_ignore_ascii_case("PLAIN");
        if !is_plain && !mechanism.eq_ignore_ascii_case("LOGIN") {
            return Ok(SmtpAnswer::reply("504 5.5.4 PLAIN or LOGIN"));
        }
        let first = match initial {
            Some(initial) => decoded(initial)?,
            None => self.ask(if is_plain { "334 " } else { "334 VXNlcm5hbWU6" }).await?,
        };
        let (user, password) = if is_plain {
            // authorisation identity NUL user NUL password
            let mut parts = first.split(|byte| *byte == 0);
            match (parts.next(), parts.next(), parts.next(), parts.next()) {
                (Some(_), Some(user), Some(password), None) => (user.to_vec(), password.to_vec()),
                _ => return Err(LineFault::AuthUnreadable),
            }
        } else {
            (first, self.ask("334 UGFzc3dvcmQ6").await?)
        };
        self.is_authenticated = own.user.as_bytes() == user && own.password.expose_secret().as_bytes() == password;
        Ok(SmtpAnswer::reply(if self.is_authenticated {
            "235 2.7.0 Authenticated"
        } else {
            "535 5.7.8 Wrong user or password"
        }))
    }

    /// Asks for the next line of an exchange.
    async fn ask(&mut self, prompt: &str) -> Result<Vec<u8>, LineFault> {
        self.wire.push_reply(prompt);
        let line = self.next_line().await?;
        if line == "*" { Err(LineFault::AuthCancelled) } else { decoded(&line) }
    }

    fn mail(&mut self, sender: &str, size: u64) -> SmtpAnswer {
        if !self.is_greeted {
            return SmtpAnswer::reply("503 5.5.1 Say hello first");
        }
        if !self.is_authenticated {
            return SmtpAnswer::reply("530 5.7.0 AUTH first");
        }
        if self.transaction.is_some() {
            return SmtpAnswer::reply("503 5.5.1 One mail at a time");
        }
        if size > self.server.settings.size_max {
            return SmtpAnswer::reply(TOO_LARGE);
        }
        let mut envelope = H::Envelope::default();
        let answer = self.server.handler.sender(&mut envelope, sender);
        if answer.is_positive() {
            self.transaction = Some(MailTransaction { envelope, recipients: 0, chunks: None });
        }
        answer
    }

    async fn recipient(&mut self, address: &str) -> SmtpAnswer {
        let Some(transaction) = &mut self.transaction else { return SmtpAnswer::reply("503 5.5.1 MAIL first") };
        if transaction.recipients >= self.server.settings.recipients_max {
            self.faults += 1;
            return SmtpAnswer::reply("452 4.5.3 Too many recipients");
        }
        let answer = self.server.handler.recipient(&mut transaction.envelope, address).await;
        if answer.is_positive() {
            transaction.recipients += 1;
        }
        answer
    }

    async fn data(&mut self) -> io::Result<SmtpAnswer> {
        let Some(transaction) = self.transaction.take() else { return Ok(SmtpAnswer::reply("503 5.5.1 MAIL first")) };
        if transaction.recipients == 0 {
            self.transaction = Some(transaction);
            return Ok(SmtpAnswer::reply("554 5.5.1 No valid recipients"));
        }
        if transaction.chunks.is_some() {
            return Ok(SmtpAnswer::reply("503 5.5.1 The mail began with BDAT"));
        }
        let handler = &self.server.handler;
        let start = handler.data(&transaction.envelope);
        if !start.is_positive() {
            return Ok(start);
        }
        if !self.give(start).await? {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        if self.wire.unread().is_empty() {
            self.wire.receive().await?;
        }
        let begins = handler.data_begins(&transaction.envelope);
        if !self.give(begins).await? {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        let answer = match self.content().await? {
            Ok(mail) => self.server.handler.mail(transaction.envelope, mail).await,
            Err(refusal) => refusal,
        };
        Ok(self.answer_recipients(transaction.recipients, answer))
    }

    /// Reads the chunk behind a BDAT (RFC 3030 §2), also where it is refused.
    async fn bdat(&mut self, chunk: Chunk) -> io::Result<SmtpAnswer> {
        let settings = &self.server.settings;
        let before =
            self.transaction.as_ref().and_then(|transaction| transaction.chunks.as_ref()).map_or(0, MailContent::size);
        if before.saturating_add(chunk.size) > settings.read_max {
            return Ok(SmtpAnswer { then: AfterAnswer::Close, ..self.refuse_too_large() });
        }
        let Some(mut transaction) = self.transaction.take() else {
            return self.skip_chunk(chunk, SmtpAnswer::reply("503 5.5.1 MAIL first")).await;
        };
        if transaction.recipients == 0 {
            return self.skip_chunk(chunk, SmtpAnswer::reply("554 5.5.1 No valid recipients")).await;
        }
        if transaction.chunks.is_none() {
            let handler = &self.server.handler;
            let mut start = handler.data(&transaction.envelope);
            if let Some(delay) = start.delay.take() {
                self.wire.flush().await?;
                tokio::time::sleep(delay).await;
            }
            if !start.is_positive() {
                let refusal = self.skip_chunk(chunk, start).await?;
                return Ok(self.answer_chunk(chunk, transaction.recipients, refusal));
            }
            if self.wire.unread().is_empty() && chunk.size > 0 {
                self.wire.receive().await?;
            }
            let begins = handler.data_begins(&transaction.envelope);
            if !self.give(begins).await? {
                return Err(io::ErrorKind::ConnectionAborted.into());
            }
        }
        let (kept_max, expected) = (settings.kept_max, self.wire.unread().len());
        let content =
            transaction.chunks.get_or_insert_with(|| MailContent::new(settings.bare_line_ends, kept_max, expected));
        self.read_chunk(chunk.size, |octets| content.keep(octets)).await?;
        let size = content.size();
        if size > settings.size_max {
            let refusal = self.refuse_too_large();
            return Ok(self.answer_chunk(chunk, transaction.recipients, refusal));
        }
        if !chunk.is_last {
            self.transaction = Some(transaction);
            return Ok(SmtpAnswer::reply(format!("250 2.0.0 {} octets received", chunk.size)));
        }
        let content = transaction.chunks.take().map(MailContent::into_kept).unwrap_or_default();
        let answer = self.server.handler.mail(transaction.envelope, ReceivedMail { content, size }).await;
        Ok(self.answer_recipients(transaction.recipients, answer))
    }

    /// Reads a chunk of a mail that is refused, unless the connection ends anyway.
    async fn skip_chunk(&mut self, chunk: Chunk, refusal: SmtpAnswer) -> io::Result<SmtpAnswer> {
        if refusal.then == AfterAnswer::Continue {
            self.read_chunk(chunk.size, |_| ()).await?;
        }
        Ok(refusal)
    }

    async fn read_chunk(&mut self, size: u64, mut take: impl FnMut(&[u8])) -> io::Result<()> {
        let settings = &self.server.settings;
        let (started, mut left) = (Instant::now(), size);
        while left > 0 {
            let unread = self.wire.unread();
            let octets = &unread[..usize::try_from(left).unwrap_or(usize::MAX).min(unread.len())];
            take(octets);
            let used = octets.len();
            self.wire.consume(used);
            left -= used as u64;
            if left > 0 {
                if started.elapsed()
                    > settings.data_timeout + Duration::from_secs((size - left) / settings.data_rate_min)
                {
                    return Err(io::ErrorKind::TimedOut.into());
                }
                self.wire.receive().await?;
            }
        }
        Ok(())
    }

    /// The answer to a mail: over LMTP one reply for each recipient (RFC 2033 §4.2). They share one mail, so they get the same reply.
    fn answer_recipients(&mut self, recipients: usize, answer: SmtpAnswer) -> SmtpAnswer {
        if let (MailProtocol::Lmtp, Some(reply)) = (self.server.settings.protocol, &answer.reply) {
            (1..recipients).for_each(|_| self.wire.push_reply(reply));
        }
        answer
    }

    /// The answer to a chunk: the last one is answered as the mail.
    fn answer_chunk(&mut self, chunk: Chunk, recipients: usize, answer: SmtpAnswer) -> SmtpAnswer {
        if chunk.is_last { self.answer_recipients(recipients, answer) } else { answer }
    }

    /// Reads a mail to its end, or answers why it is refused.
    async fn content(&mut self) -> io::Result<Result<ReceivedMail, SmtpAnswer>> {
        let settings = &self.server.settings;
        let mut content = MailContent::new(settings.bare_line_ends, settings.kept_max, self.wire.unread().len());
        let started = Instant::now();
        loop {
            let (used, progress) = content.take(self.wire.unread());
            self.wire.consume(used);
            let size = content.size();
            let time_max = settings.data_timeout + Duration::from_secs(size / settings.data_rate_min);
            match progress {
                DataProgress::Done if size > settings.size_max => return Ok(Err(self.refuse_too_large())),
                DataProgress::Done => return Ok(Ok(ReceivedMail { content: content.into_kept(), size })),
                DataProgress::BareLineEnd => return Ok(Err(self.refuse_bare_line_end())),
                DataProgress::More if size > settings.read_max || started.elapsed() > time_max => {
                    return Err(io::ErrorKind::TimedOut.into());
                }
                DataProgress::More => self.wire.receive().await?,
            }
        }
    }

    fn refuse_too_large(&self) -> SmtpAnswer {
        self.server.handler.mail_refused(MailFault::TooLarge);
        SmtpAnswer::reply(TOO_LARGE)
    }

    fn refuse_bare_line_end(&self) -> SmtpAnswer {
        self.server.handler.mail_refused(MailFault::BareLineEnd);
        SmtpAnswer::reply_and_close("521 5.5.2 Lines end with CR LF and with nothing else")
    }
}

fn decoded(line: &str) -> Result<Vec<u8>, LineFault> {
    STANDARD.decode(line.trim()).map_err(|_| LineFault::AuthUnreadable)
}
