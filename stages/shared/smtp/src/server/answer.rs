//! What a server asks about a mail, and what it may be answered.

use std::{borrow::Cow, time::Duration};

/// Decides about addresses and mail. One handler serves all connections of a server.
pub trait MailHandler: Send + Sync + 'static {
    /// The envelope of a mail while it comes in. Begins with MAIL; a refused MAIL, RSET, a greeting or the end of the mail drops it.
    type Envelope: Default + Send;

    /// A connection was taken.
    fn connected(&self) {}

    /// The server itself refused a mail.
    fn mail_refused(&self, _fault: MailFault) {}

    /// The answer to MAIL. The address is empty for bounces.
    fn sender(&self, envelope: &mut Self::Envelope, address: &str) -> SmtpAnswer;

    /// The answer to RCPT.
    fn recipient(&self, envelope: &mut Self::Envelope, address: &str) -> impl Future<Output = SmtpAnswer> + Send;

    /// The answer to DATA, or to the first BDAT, before anything of the mail is read. BDAT gets no positive answer here, but waits as long.
    fn data(&self, _envelope: &Self::Envelope) -> SmtpAnswer {
        SmtpAnswer::reply("354 Go on; end with <CR><LF>.<CR><LF>")
    }

    /// Asked when the first octets of the mail are there. A reply would be out of order.
    fn data_begins(&self, _envelope: &Self::Envelope) -> SmtpAnswer {
        SmtpAnswer { delay: None, reply: None, then: AfterAnswer::Continue }
    }

    /// The answer to a complete mail: whatever is acknowledged by 2xx is the handler's.
    fn mail(&self, envelope: Self::Envelope, mail: ReceivedMail) -> impl Future<Output = SmtpAnswer> + Send;
}

/// A complete mail.
#[derive(Debug)]
pub struct ReceivedMail {
    /// Its octets from the beginning, dots unstuffed, as many as the settings let be kept.
    pub content: Vec<u8>,
    /// The length of the whole mail.
    pub size: u64,
}

/// Why the server itself refuses a mail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MailFault {
    /// Larger than allowed.
    TooLarge,
    /// A bare line feed or carriage return, in a command or in the mail.
    BareLineEnd,
}

/// An answer, and what the connection does after it.
#[derive(Debug)]
pub struct SmtpAnswer {
    /// To wait before the answer.
    pub delay: Option<Duration>,
    /// Lines separated by CR LF, without the last line end. `None` says nothing.
    pub reply: Option<Cow<'static, str>>,
    /// What comes then.
    pub then: AfterAnswer,
}

/// What a connection does after an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AfterAnswer {
    /// Goes on.
    Continue,
    /// Ends in order.
    Close,
    /// Ends without sending what is still unsent.
    Abort,
}

impl SmtpAnswer {
    /// A reply. RFC 5321 §3.8: with 421 the server closes the connection.
    pub fn reply(reply: impl Into<Cow<'static, str>>) -> Self {
        let reply = reply.into();
        let then = if reply.starts_with("421") { AfterAnswer::Close } else { AfterAnswer::Continue };
        Self { delay: None, reply: Some(reply), then }
    }

    /// A reply, and then the end of the connection.
    #[must_use]
    pub fn reply_and_close(reply: &'static str) -> Self {
        Self { then: AfterAnswer::Close, ..Self::reply(reply) }
    }

    /// True for 2xx and 3xx.
    #[must_use]
    pub fn is_positive(&self) -> bool {
        self.reply.as_ref().is_some_and(|reply| reply.starts_with(['2', '3']))
    }

    /// True for 5xx.
    pub(super) fn is_permanent_refusal(&self) -> bool {
        self.reply.as_ref().is_some_and(|reply| reply.starts_with('5'))
    }
}
