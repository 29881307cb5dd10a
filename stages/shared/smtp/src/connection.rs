//! One SMTP connection: the session's opening, and one transaction after another.

use std::{
    fmt::Write as _,
    io::{self, IoSlice, Write as _},
    ops::Range,
    sync::Arc,
    time::{Duration, Instant},
};

use futures::FutureExt;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use super::{
    AuthMechanism, Cause, Envelope, Phase, Reply, SmtpFailure, SmtpMessage, SmtpSettings, TlsMode, auth,
    message::append_data, stream::SmtpStream,
};

#[derive(Debug, Default)]
struct Extensions {
    pipelining: bool,
    chunking: bool,
    eight_bit: bool,
    international: bool,
    starttls: bool,
    /// The largest accepted message if SIZE is offered (0: no limit).
    size: Option<usize>,
    auth: Vec<AuthMechanism>,
}

impl Extensions {
    fn read(reply: &Reply) -> Self {
        let mut extensions = Self::default();
        // The first line names the server, which is no keyword. A reply's text does not begin with an empty one.
        for line in reply.text.lines() {
            let (keyword, rest) = line.split_once([' ', '=']).unwrap_or((line, ""));
            match keyword.to_ascii_uppercase().as_str() {
                "PIPELINING" => extensions.pipelining = true,
                "CHUNKING" => extensions.chunking = true,
                "8BITMIME" => extensions.eight_bit = true,
                "SMTPUTF8" => extensions.international = true,
                "STARTTLS" => extensions.starttls = true,
                "SIZE" => extensions.size = Some(rest.trim().parse().unwrap_or(0)),
                // Some servers write `AUTH=`.
                "AUTH" => extensions.auth.extend(auth::offered(rest)),
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
    /// The last transaction was refused, perhaps in part: RSET precedes the next one.
    needs_reset: bool,
    /// When the last reply came.
    answered_at: Instant,
    /// Only QUIT may be written.
    broken: bool,
    /// Messages accepted on this connection.
    pub(super) messages: u32,
}

/// The largest buffer that an idle connection keeps.
const BUFFER_KEEP_MAX: usize = 128 * 1024;
/// A server that answered within this time is trusted to be there still. Servers close idle connections after five seconds or more.
const FRESH: Duration = Duration::from_secs(2);

impl SmtpConnection {
    /// Connects, greets, encrypts and authenticates as the settings say.
    pub(super) async fn connect(settings: &Arc<SmtpSettings>, tls: &TlsConnector) -> Result<Self, SmtpFailure> {
        let (relay, limit) = (&settings.relay, settings.timeouts.connect);
        let connected = timeout(limit, SmtpStream::connect(&relay.host, relay.port, limit)).await;
        let connected = connected.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
        let socket = connected.map_err(|error| {
            let is_late = error.kind() == io::ErrorKind::TimedOut;
            let cause = if is_late { Cause::Timeout } else { Cause::Unreachable(error) };
            SmtpFailure::not_sent(Phase::Connect, cause)
        })?;
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
            answered_at: Instant::now(),
            broken: false,
            messages: 0,
        };
        connection.expect(Phase::Greeting, 220).await?;
        connection.hello().await?;
        let connection = connection.secure(tls).await?;
        connection.authenticate().await
    }

    /// EHLO, or HELO for a server that does not know it (RFC 5321 §3.2).
    async fn hello(&mut self) -> Result<(), SmtpFailure> {
        let name = self.settings.hello_name.clone();
        self.command(Phase::Greeting, &format!("EHLO {name}\r\n")).await?;
        let reply = self.next_answer(Phase::Greeting).await?;
        if reply.is_success() {
            self.extensions = Extensions::read(&reply);
            return Ok(());
        }
        if !matches!(reply.code, 500 | 501 | 502 | 504) {
            return Err(SmtpFailure::not_sent(Phase::Greeting, Cause::Refused(reply)));
        }
        self.extensions = Extensions::default();
        self.command(Phase::Greeting, &format!("HELO {name}\r\n")).await?;
        self.expect(Phase::Greeting, 250).await
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
        self.expect(Phase::Tls, 220).await?;
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
        let Some(credentials) = &settings.relay.credentials else { return Ok(self) };
        // A password leaves in clear only where the operator wrote `tls=none`.
        let safe = self.stream.is_encrypted() || settings.relay.tls == TlsMode::None;
        let mechanism = auth::choose(&self.extensions.auth, credentials.mechanism).filter(|_| safe);
        let Some(mechanism) = mechanism else { return Err(SmtpFailure::not_sent(Phase::Auth, Cause::AuthNotOffered)) };
        for line in auth::lines(mechanism, credentials) {
            self.command(Phase::Auth, &line).await?;
            let reply = self.next_answer(Phase::Auth).await?;
            match reply.code {
                235 => return Ok(self),
                334 => {}
                _ => return Err(SmtpFailure::not_sent(Phase::Auth, Cause::Refused(reply))),
            }
        }
        Err(SmtpFailure::not_sent(Phase::Auth, Cause::Unreadable))
    }

    /// Refuses what this server does not take, before anything is said to it.
    pub(super) fn check(&self, envelope: &Envelope) -> Result<(), SmtpFailure> {
        if envelope.is_international() && !self.extensions.international {
            return Err(SmtpFailure::not_sent(Phase::Mail, Cause::InternationalNotOffered));
        }
        if self.extensions.size.is_some_and(|limit| limit > 0 && envelope.size > limit) {
            return Err(SmtpFailure::not_sent(Phase::Mail, Cause::TooLarge));
        }
        Ok(())
    }

    /// True if the server has closed, or has said something unasked, such as 421. Nothing is written to find out.
    pub(super) fn is_gone(&mut self) -> bool {
        !self.input.is_empty() || self.stream.read_into(&mut self.input).now_or_never().is_some()
    }

    /// How long ago the server last answered.
    pub(super) fn idle_time(&self) -> Duration {
        self.answered_at.elapsed()
    }

    /// One transaction: the envelope, then `header` and the message. With `chunking`, a server that offers CHUNKING gets BDAT.
    ///
    /// A connection that was used a moment ago gets everything in one write. An idle one may have been given up by the server, and then
    /// it would be unknown whether a mail was taken: its server answers the envelope first.
    pub(super) async fn send(
        &mut self,
        envelope: &Envelope,
        header: &[u8],
        message: &SmtpMessage,
        chunking: bool,
    ) -> Result<Reply, SmtpFailure> {
        let chunking = chunking && self.extensions.chunking && self.extensions.pipelining;
        let commands = self.write_commands(envelope, !chunking);
        let at_once = chunking && !self.needs_reset && self.idle_time() < FRESH;
        if !at_once {
            self.open(commands).await?;
            self.output.clear();
        }
        // From here on only the reply to the message makes the connection usable again.
        self.broken = true;
        let broke_off = if chunking {
            let size = header.len() + message.as_bytes().len();
            // Writing to a Vec cannot fail.
            let _ = write!(self.output, "BDAT {size} LAST\r\n");
            self.write_message(self.output.len(), [header, message.as_bytes()]).await
        } else {
            append_data(&mut self.output, header, message);
            self.write_message(0, [b"", b""]).await
        };
        if self.output.capacity() > BUFFER_KEEP_MAX {
            self.output = Vec::new();
        }
        let all: &[Phase] = if at_once { &[Phase::Mail, Phase::Rcpt, Phase::Final] } else { &[Phase::Final] };
        let reply = self.read_outcome(all, chunking, broke_off?).await?;
        self.messages += 1;
        Ok(reply)
    }

    /// Sends the commands before a message, all in one write with PIPELINING, and reads their replies. After an error the connection
    /// serves on if [`Self::is_reusable`] says so.
    async fn open(&mut self, commands: Vec<(Phase, Range<usize>)>) -> Result<(), SmtpFailure> {
        let answer_by = Instant::now() + self.settings.timeouts.command;
        if self.extensions.pipelining {
            self.write_output(Phase::Mail, 0..self.output.len(), self.settings.timeouts.command).await?;
        }
        let mut refused = None;
        for (phase, range) in commands {
            if !self.extensions.pipelining {
                self.write_output(phase, range, answer_by.saturating_duration_since(Instant::now())).await?;
            }
            let reply = match self.reply(phase, answer_by).await {
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
        refused.map_or(Ok(()), Err)
    }

    /// Writes the envelope's commands into `output`, with DATA if asked, and returns each with its phase and range.
    fn write_commands(&mut self, envelope: &Envelope, with_data: bool) -> Vec<(Phase, Range<usize>)> {
        let mut mail = format!("MAIL FROM:<{}>", envelope.from.as_ref().map_or("", |from| from.as_str()));
        if self.extensions.size.is_some() {
            // Writing to a String cannot fail.
            let _ = write!(mail, " SIZE={}", envelope.size);
        }
        if envelope.eight_bit && self.extensions.eight_bit {
            mail.push_str(" BODY=8BITMIME");
        }
        if envelope.is_international() {
            mail.push_str(" SMTPUTF8");
        }
        let recipient = format!("RCPT TO:<{}>", envelope.to.as_str());
        let lines = [
            (Phase::Mail, "RSET", self.needs_reset),
            (Phase::Mail, mail.as_str(), true),
            (Phase::Rcpt, recipient.as_str(), true),
            (Phase::Data, "DATA", with_data),
        ];
        self.output.clear();
        let mut commands = Vec::with_capacity(lines.len());
        for (phase, line, _) in lines.into_iter().filter(|(.., is_said)| *is_said) {
            let start = self.output.len();
            self.output.extend_from_slice(line.as_bytes());
            self.output.extend_from_slice(b"\r\n");
            commands.push((phase, start..self.output.len()));
        }
        commands
    }

    /// Writes `output`, of which the first `head` octets are commands, and then `parts`. `Some`: this broke it off after octets of the
    /// message had left, and the server may have said why.
    async fn write_message(&mut self, head: usize, parts: [&[u8]; 2]) -> Result<Option<Cause>, SmtpFailure> {
        let mut written = 0;
        let mut slices = [IoSlice::new(&self.output), IoSlice::new(parts[0]), IoSlice::new(parts[1])];
        let writing = self.stream.write_all(&mut slices, &mut written);
        let cause = match timeout(self.settings.timeouts.body, writing).await {
            Ok(Ok(())) => return Ok(None),
            Ok(Err(error)) => Cause::Io(error),
            Err(_) => Cause::Timeout,
        };
        // The envelope may be in the same write: a connection whose server is gone is like one that was refused MAIL.
        if written <= head { Err(SmtpFailure::not_sent(Phase::Mail, cause)) } else { Ok(Some(cause)) }
    }

    /// Reads the replies to a written message, the last of `phases`, and to the commands that left with it.
    ///
    /// A refusal of any of them is certain: the server discards the message. A reply that is missing leaves the outcome unknown, unless
    /// a refusal came before it.
    async fn read_outcome(
        &mut self,
        phases: &[Phase],
        chunked: bool,
        broke_off: Option<Cause>,
    ) -> Result<Reply, SmtpFailure> {
        let timeouts = &self.settings.timeouts;
        let limit = if broke_off.is_some() { timeouts.quit } else { timeouts.last };
        let answer_by = Instant::now() + limit;
        let mut refused: Option<SmtpFailure> = None;
        let mut has_recipient = true;
        for &phase in phases {
            let reply = match self.read_reply(answer_by).await {
                Ok(reply) if reply.is_success() && phase != Phase::Final => continue,
                Ok(reply) if reply.is_success() || reply.is_negative() => reply,
                other => {
                    let cause = other.map_or_else(|cause| cause, Cause::Refused);
                    let unknown = match broke_off {
                        Some(cause) => SmtpFailure::unknown(Phase::Body, cause),
                        None => SmtpFailure::unknown(phase, cause),
                    };
                    return Err(refused.unwrap_or(unknown));
                }
            };
            if reply.is_success() {
                return match (refused, broke_off) {
                    (None, None) => {
                        self.finish(false);
                        Ok(reply)
                    }
                    // A message without recipients was taken.
                    (Some(refused), _) if !has_recipient => Err(refused),
                    // A message was taken without a sender, or before it was complete: who knows.
                    (Some(_), _) => Err(SmtpFailure::unknown(phase, Cause::Unreadable)),
                    (None, Some(cause)) => Err(SmtpFailure::unknown(Phase::Body, cause)),
                };
            }
            has_recipient &= phase != Phase::Rcpt;
            let is_first = refused.is_none();
            let (code, is_final) = (reply.code, phase == Phase::Final);
            let refusal = refused.get_or_insert(SmtpFailure::not_sent(phase, Cause::Refused(reply)));
            let knows_bdat = !(chunked && is_final && matches!(code, 500 | 502 | 504));
            if chunked && is_final && is_first && matches!(code, 500 | 502..=504) {
                refusal.cause = Cause::ChunkingRefused;
            } else if is_final && knows_bdat && code != 421 && broke_off.is_none() {
                self.finish(chunked);
            }
            if code == 421 {
                break;
            }
        }
        Err(refused.unwrap_or_else(|| SmtpFailure::unknown(Phase::Final, Cause::Unreadable)))
    }

    /// The server has ended the transaction, so the next one may begin.
    fn finish(&mut self, needs_reset: bool) {
        self.needs_reset = needs_reset;
        // Bytes after the last reply belong to no command: the next replies could not be matched.
        self.broken = !self.input.is_empty();
    }

    #[cfg(test)]
    pub(super) fn age(&mut self) {
        self.answered_at = self.answered_at.checked_sub(FRESH).unwrap_or(self.answered_at);
    }

    /// True if another transaction may begin on this connection.
    pub(super) fn is_reusable(&self) -> bool {
        !self.broken && self.input.is_empty() && self.messages < self.settings.max_messages_per_connection
    }

    /// Sends NOOP to check that the server answers.
    pub(super) async fn noop(&mut self) -> Result<(), SmtpFailure> {
        self.command(Phase::Mail, "NOOP\r\n").await?;
        self.expect(Phase::Mail, 250).await
    }

    /// Sends QUIT if the session is open, and waits briefly for the answer, which has no effect.
    pub(super) async fn quit(mut self) {
        if !self.broken {
            let limit = self.settings.timeouts.quit;
            if let Ok(Ok(())) = timeout(limit, self.stream.write_all(&mut [IoSlice::new(b"QUIT\r\n")], &mut 0)).await {
                drop(self.read_reply(Instant::now() + limit).await);
            }
        }
    }

    async fn command(&mut self, phase: Phase, line: &str) -> Result<(), SmtpFailure> {
        self.output.clear();
        self.output.extend_from_slice(line.as_bytes());
        self.write_output(phase, 0..line.len(), self.settings.timeouts.command).await
    }

    async fn write_output(&mut self, phase: Phase, range: Range<usize>, limit: Duration) -> Result<(), SmtpFailure> {
        let cause = match timeout(limit, self.stream.write_all(&mut [IoSlice::new(&self.output[range])], &mut 0)).await
        {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(error)) => Cause::Io(error),
            Err(_) => Cause::Timeout,
        };
        self.broken = true;
        Err(SmtpFailure::not_sent(phase, cause))
    }

    /// A reply to a command before the message.
    async fn reply(&mut self, phase: Phase, answer_by: Instant) -> Result<Reply, SmtpFailure> {
        self.read_reply(answer_by).await.map_err(|cause| {
            self.broken = true;
            SmtpFailure::not_sent(phase, cause)
        })
    }

    /// The reply to a single command.
    async fn next_answer(&mut self, phase: Phase) -> Result<Reply, SmtpFailure> {
        self.reply(phase, Instant::now() + self.settings.timeouts.command).await
    }

    async fn expect(&mut self, phase: Phase, code: u16) -> Result<(), SmtpFailure> {
        let reply = self.next_answer(phase).await?;
        if reply.code == code { Ok(()) } else { Err(SmtpFailure::not_sent(phase, Cause::Refused(reply))) }
    }

    async fn read_reply(&mut self, answer_by: Instant) -> Result<Reply, Cause> {
        let limit = answer_by.saturating_duration_since(Instant::now());
        let read = timeout(limit, self.next_reply()).await.unwrap_or(Err(Cause::Timeout));
        self.answered_at = Instant::now();
        read
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
