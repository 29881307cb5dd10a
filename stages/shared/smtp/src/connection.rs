//! One SMTP connection: the session's opening and one transaction after another, in two halves each.

use std::{fmt::Write as _, io, ops::Range, sync::Arc, time::Duration};

use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use super::{
    Cause, Envelope, Phase, Reply, SmtpFailure, SmtpMessage, SmtpSettings, TlsMode, auth, message::append_data,
    stream::SmtpStream,
};

/// The extensions of the server's EHLO reply.
#[derive(Debug, Clone, Copy, Default)]
struct Extensions {
    pipelining: bool,
    eight_bit: bool,
    international: bool,
    starttls: bool,
    /// The largest accepted message if SIZE is offered (0: no limit).
    size: Option<usize>,
    auth: auth::Offered,
}

impl Extensions {
    fn read(reply: &Reply) -> Self {
        let mut extensions = Self::default();
        for line in reply.text.lines().skip(1) {
            let (keyword, rest) = line.split_once([' ', '=']).unwrap_or((line, ""));
            match keyword.to_ascii_uppercase().as_str() {
                "PIPELINING" => extensions.pipelining = true,
                "8BITMIME" => extensions.eight_bit = true,
                "SMTPUTF8" => extensions.international = true,
                "STARTTLS" => extensions.starttls = true,
                "SIZE" => extensions.size = Some(rest.trim().parse().unwrap_or(0)),
                "AUTH" => extensions.auth.add(rest),
                _ => {}
            }
        }
        extensions
    }
}

/// A connection that is ready for a transaction, in one, or broken.
pub(super) struct SmtpConnection {
    stream: SmtpStream,
    settings: Arc<SmtpSettings>,
    extensions: Extensions,
    /// Bytes that were read and not parsed yet.
    input: Vec<u8>,
    /// The commands or the body being written, kept for its capacity.
    output: Vec<u8>,
    /// MAIL was accepted and no transaction followed: RSET precedes the next one.
    needs_reset: bool,
    /// Only QUIT may be written.
    broken: bool,
    /// Messages accepted on this connection.
    pub(super) messages: u32,
}

/// The largest buffer that an idle connection keeps.
const BUFFER_KEEP_MAX: usize = 128 * 1024;

impl SmtpConnection {
    /// Connects, greets, encrypts and authenticates as the settings say.
    pub(super) async fn connect(settings: &Arc<SmtpSettings>, tls: &TlsConnector) -> Result<Self, SmtpFailure> {
        let (relay, limit) = (&settings.relay, settings.timeouts.connect);
        let socket = match timeout(limit, SmtpStream::connect(&relay.host, relay.port)).await {
            Ok(Ok(socket)) => socket,
            Ok(Err(error)) => return Err(SmtpFailure::not_sent(Phase::Connect, Cause::Unreachable(error))),
            Err(_) => return Err(SmtpFailure::not_sent(Phase::Connect, Cause::Timeout)),
        };
        let stream = match relay.tls {
            TlsMode::Implicit => encrypt(socket, tls, &relay.host, limit).await?,
            TlsMode::None | TlsMode::Opportunistic | TlsMode::Required => SmtpStream::Plain(socket),
        };
        let mut connection = Self {
            stream,
            settings: settings.clone(),
            extensions: Extensions::default(),
            input: Vec::with_capacity(1024),
            output: Vec::new(),
            needs_reset: false,
            broken: false,
            messages: 0,
        };
        connection.greet().await?;
        let connection = connection.secure(tls).await?;
        connection.authenticate().await
    }

    async fn greet(&mut self) -> Result<(), SmtpFailure> {
        self.expect(Phase::Greeting, 220..221).await?;
        self.hello().await
    }

    /// EHLO, or HELO for a server that does not know it (RFC 5321 §3.2).
    async fn hello(&mut self) -> Result<(), SmtpFailure> {
        let name = self.settings.hello_name.clone();
        self.command(Phase::Greeting, &format!("EHLO {name}\r\n")).await?;
        let reply = self.reply(Phase::Greeting).await?;
        if reply.is_success() {
            self.extensions = Extensions::read(&reply);
            return Ok(());
        }
        if !matches!(reply.code, 500 | 501 | 502 | 504) {
            return Err(SmtpFailure::not_sent(Phase::Greeting, Cause::Refused(reply)));
        }
        self.extensions = Extensions::default();
        self.command(Phase::Greeting, &format!("HELO {name}\r\n")).await?;
        self.expect(Phase::Greeting, 250..251).await.map(drop)
    }

    /// STARTTLS as the settings say, and EHLO again: what was said in clear does not count (RFC 3207 §4.2).
    async fn secure(mut self, tls: &TlsConnector) -> Result<Self, SmtpFailure> {
        let wanted = match self.settings.relay.tls {
            TlsMode::None | TlsMode::Implicit => false,
            TlsMode::Opportunistic => self.extensions.starttls,
            TlsMode::Required => true,
        };
        if !wanted {
            return Ok(self);
        }
        if !self.extensions.starttls {
            return Err(SmtpFailure::not_sent(Phase::Tls, Cause::TlsNotOffered));
        }
        self.command(Phase::Tls, "STARTTLS\r\n").await?;
        self.expect(Phase::Tls, 220..221).await?;
        // Bytes after the 220 could be injected by an attacker and read as if they were encrypted.
        if !self.input.is_empty() {
            return Err(SmtpFailure::not_sent(Phase::Tls, Cause::Unreadable));
        }
        let SmtpStream::Plain(socket) = self.stream else {
            return Err(SmtpFailure::not_sent(Phase::Tls, Cause::Unreadable));
        };
        self.stream = encrypt(socket, tls, &self.settings.relay.host, self.settings.timeouts.connect).await?;
        self.hello().await?;
        Ok(self)
    }

    async fn authenticate(mut self) -> Result<Self, SmtpFailure> {
        let settings = self.settings.clone();
        let Some(credentials) = &settings.relay.credentials else {
            return Ok(self);
        };
        // A password leaves in clear only where the operator wrote `tls=none`.
        let safe = self.stream.is_encrypted() || settings.relay.tls == TlsMode::None;
        let mechanism = self.extensions.auth.choose(credentials.mechanism).filter(|_| safe);
        let Some(mechanism) = mechanism else {
            return Err(SmtpFailure::not_sent(Phase::Auth, Cause::AuthNotOffered));
        };
        for line in auth::lines(mechanism, credentials) {
            self.command(Phase::Auth, &line).await?;
            let reply = self.reply(Phase::Auth).await?;
            match reply.code {
                235 => return Ok(self),
                334 => {}
                _ => return Err(SmtpFailure::not_sent(Phase::Auth, Cause::Refused(reply))),
            }
        }
        Err(SmtpFailure::not_sent(Phase::Auth, Cause::Unreadable))
    }

    /// Brings a transaction to 354. After an error the connection serves on if [`Self::is_reusable`] says so.
    pub(super) async fn open(&mut self, envelope: &Envelope) -> Result<(), SmtpFailure> {
        if envelope.is_international() && !self.extensions.international {
            return Err(SmtpFailure::not_sent(Phase::Mail, Cause::InternationalNotOffered));
        }
        if self.extensions.size.is_some_and(|limit| limit > 0 && envelope.size > limit) {
            return Err(SmtpFailure::not_sent(Phase::Mail, Cause::TooLarge));
        }
        let commands = self.transaction(envelope);
        if self.extensions.pipelining {
            self.write_output(Phase::Mail, 0..self.output.len(), self.settings.timeouts.command).await?;
        }
        let mut refused = None;
        for (phase, range) in commands.into_iter().flatten() {
            if !self.extensions.pipelining {
                self.write_output(phase, range, self.settings.timeouts.command).await?;
            }
            let reply = match self.reply(phase).await {
                Ok(reply) => reply,
                // The server's refusal before it closed is the better answer.
                Err(failure) => return Err(refused.unwrap_or(failure)),
            };
            let accepted = if phase == Phase::Data { reply.code == 354 } else { reply.is_success() };
            self.broken |= reply.code == 421;
            if accepted {
                self.needs_reset = true;
                // A server that wants a body although it refused the recipient gets none.
                self.broken |= phase == Phase::Data && refused.is_some();
            } else if refused.is_none() {
                refused = Some(SmtpFailure::not_sent(phase, Cause::Refused(reply)));
            }
            if self.broken || (refused.is_some() && !self.extensions.pipelining) {
                break;
            }
        }
        match refused {
            Some(failure) => Err(failure),
            None => {
                // From 354 on the server waits for a body: only a final reply makes the connection usable again.
                self.broken = true;
                Ok(())
            }
        }
    }

    /// Writes the transaction's commands into `output`, and returns each with its phase and range.
    fn transaction(&mut self, envelope: &Envelope) -> [Option<(Phase, Range<usize>)>; 4] {
        let mut text = String::with_capacity(256);
        let mut commands = [None, None, None, None];
        if self.needs_reset {
            text.push_str("RSET\r\n");
            commands[0] = Some((Phase::Mail, 0..text.len()));
        }
        let start = text.len();
        text.push_str("MAIL FROM:<");
        text.push_str(envelope.from.as_ref().map_or("", |from| from.as_str()));
        text.push('>');
        if self.extensions.size.is_some() {
            // Writing to a String cannot fail.
            let _ = write!(text, " SIZE={}", envelope.size);
        }
        if envelope.eight_bit && self.extensions.eight_bit {
            text.push_str(" BODY=8BITMIME");
        }
        if envelope.is_international() {
            text.push_str(" SMTPUTF8");
        }
        text.push_str("\r\n");
        commands[1] = Some((Phase::Mail, start..text.len()));
        let start = text.len();
        text.push_str("RCPT TO:<");
        text.push_str(envelope.to.as_str());
        text.push_str(">\r\n");
        commands[2] = Some((Phase::Rcpt, start..text.len()));
        let start = text.len();
        text.push_str("DATA\r\n");
        commands[3] = Some((Phase::Data, start..text.len()));
        self.output.clear();
        self.output.extend_from_slice(text.as_bytes());
        commands
    }

    /// Sends the message after [`Self::open`]: body and final dot in one write, then reads the final reply.
    pub(super) async fn send(&mut self, header: &[u8], message: &SmtpMessage) -> Result<Reply, SmtpFailure> {
        self.output.clear();
        append_data(&mut self.output, header, message);
        let written = timeout(self.settings.timeouts.body, self.stream.write_all(&self.output)).await;
        if self.output.capacity() > BUFFER_KEEP_MAX {
            self.output = Vec::new();
        }
        let limit = match written {
            Ok(Ok(())) => self.settings.timeouts.last,
            // A server that refuses in mid-body often sends the reason before it closes.
            Ok(Err(error)) => {
                let said = self.read_reply(self.settings.timeouts.quit).await.ok().filter(Reply::is_negative);
                return Err(match said {
                    Some(reply) => SmtpFailure::not_sent(Phase::Body, Cause::Refused(reply)),
                    None => SmtpFailure::unknown(Phase::Body, Cause::Io(error)),
                });
            }
            Err(_) => return Err(SmtpFailure::unknown(Phase::Body, Cause::Timeout)),
        };
        let reply = self.read_reply(limit).await.map_err(|cause| SmtpFailure::unknown(Phase::Final, cause))?;
        if reply.is_success() {
            self.finish(&reply);
            self.messages += 1;
            Ok(reply)
        } else if reply.is_negative() {
            self.finish(&reply);
            Err(SmtpFailure::not_sent(Phase::Final, Cause::Refused(reply)))
        } else {
            Err(SmtpFailure::unknown(Phase::Final, Cause::Refused(reply)))
        }
    }

    /// The server has ended the transaction, so the next one may begin (unless it is closing).
    fn finish(&mut self, reply: &Reply) {
        self.needs_reset = false;
        // Bytes after the final reply belong to no command: the next replies could not be matched.
        self.broken = reply.code == 421 || !self.input.is_empty();
    }

    /// True if another transaction may begin on this connection.
    pub(super) fn is_reusable(&self) -> bool {
        !self.broken && self.input.is_empty() && self.messages < self.settings.max_messages_per_connection
    }

    /// Sends NOOP to check that the server answers.
    pub(super) async fn noop(&mut self) -> Result<(), SmtpFailure> {
        self.command(Phase::Mail, "NOOP\r\n").await?;
        self.expect(Phase::Mail, 250..251).await.map(drop)
    }

    /// Sends QUIT if the session is open, and waits briefly for the answer, which has no effect.
    pub(super) async fn quit(mut self) {
        if !self.broken {
            let limit = self.settings.timeouts.quit;
            if let Ok(Ok(())) = timeout(limit, self.stream.write_all(b"QUIT\r\n")).await {
                drop(self.read_reply(limit).await);
            }
        }
    }

    async fn command(&mut self, phase: Phase, line: &str) -> Result<(), SmtpFailure> {
        self.output.clear();
        self.output.extend_from_slice(line.as_bytes());
        self.write_output(phase, 0..line.len(), self.settings.timeouts.command).await
    }

    async fn write_output(&mut self, phase: Phase, range: Range<usize>, limit: Duration) -> Result<(), SmtpFailure> {
        let cause = match timeout(limit, self.stream.write_all(&self.output[range])).await {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(error)) => Cause::Io(error),
            Err(_) => Cause::Timeout,
        };
        self.broken = true;
        Err(SmtpFailure::not_sent(phase, cause))
    }

    /// A reply to a command before the body.
    async fn reply(&mut self, phase: Phase) -> Result<Reply, SmtpFailure> {
        let limit = if phase == Phase::Data { self.settings.timeouts.data } else { self.settings.timeouts.command };
        self.read_reply(limit).await.map_err(|cause| {
            self.broken = true;
            SmtpFailure::not_sent(phase, cause)
        })
    }

    async fn expect(&mut self, phase: Phase, codes: Range<u16>) -> Result<Reply, SmtpFailure> {
        let reply = self.reply(phase).await?;
        if codes.contains(&reply.code) { Ok(reply) } else { Err(SmtpFailure::not_sent(phase, Cause::Refused(reply))) }
    }

    async fn read_reply(&mut self, limit: Duration) -> Result<Reply, Cause> {
        match timeout(limit, self.next_reply()).await {
            Ok(read) => read,
            Err(_) => Err(Cause::Timeout),
        }
    }

    async fn next_reply(&mut self) -> Result<Reply, Cause> {
        loop {
            if let Some((reply, used)) = Reply::parse(&self.input).map_err(|_| Cause::Unreadable)? {
                self.input.drain(..used);
                return Ok(reply);
            }
            match self.stream.read_into(&mut self.input).await {
                Ok(0) => return Err(Cause::Closed),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Err(Cause::Closed),
                Err(error) => return Err(Cause::Io(error)),
            }
        }
    }
}

async fn encrypt(
    socket: tokio::net::TcpStream,
    tls: &TlsConnector,
    host: &str,
    limit: Duration,
) -> Result<SmtpStream, SmtpFailure> {
    match timeout(limit, SmtpStream::handshake(socket, tls, host)).await {
        Ok(Ok(stream)) => Ok(stream),
        Ok(Err(error)) => Err(SmtpFailure::not_sent(Phase::Tls, Cause::Handshake(error))),
        Err(_) => Err(SmtpFailure::not_sent(Phase::Tls, Cause::Timeout)),
    }
}
