//! What the sink answers over SMTP: yes, unless a rule or an address asks for something else.

use std::{sync::Arc, time::Duration};

use smtp::{
    SmtpCredentials,
    server::{AfterAnswer, BareLineEnds, MailHandler, MailProtocol, ReceivedMail, SmtpAnswer, SmtpServerSettings},
};

use crate::sink::answer::{FailureOutcome, TransactionStage};
use crate::sink::inbox::Inbox;
use crate::sink::message::StoredMessage;

/// RFC 5321 §4.5.3.1.8 asks for at least 100.
const RECIPIENTS_MAX: usize = 1_000;
const CONNECTIONS: usize = 100_000;
/// Longer than any sender waits: the sink itself ends no connection.
const TIMEOUT: Duration = Duration::from_secs(24 * 60 * 60);

/// The server's settings: it refuses nothing by itself but mail over `size_max`.
pub(crate) fn server_settings(credentials: Option<SmtpCredentials>, size_max: usize) -> SmtpServerSettings {
    SmtpServerSettings {
        protocol: MailProtocol::Smtp,
        hostname: "sink".to_owned(),
        tls: None,
        credentials,
        bare_line_ends: BareLineEnds::Keep,
        size_max: size_max as u64,
        kept_max: size_max,
        read_max: u64::MAX,
        recipients_max: RECIPIENTS_MAX,
        faults_max: u32::MAX,
        connections: CONNECTIONS,
        connections_per_client: 0,
        silence_timeout: TIMEOUT,
        session_timeout: TIMEOUT,
        data_timeout: TIMEOUT,
        data_rate_min: 1,
    }
}

/// Puts every mail into the inbox.
pub(crate) struct SinkMailHandler(pub(crate) Arc<Inbox>);

impl SinkMailHandler {
    /// `positive`, or what the addresses' scripts and the rules put in its place.
    fn answer_at<'a>(
        &self,
        stage: TransactionStage,
        positive: SmtpAnswer,
        addresses: impl Iterator<Item = &'a String>,
    ) -> SmtpAnswer {
        let Some(behaviour) = self.0.behaviour_at(stage, addresses.map(String::as_str)) else { return positive };
        let answer = match behaviour.outcome {
            None => positive,
            Some(FailureOutcome::Reply(reply)) => SmtpAnswer::reply(reply),
            Some(FailureOutcome::Drop) => SmtpAnswer { delay: None, reply: None, then: AfterAnswer::Abort },
            // Answers to mails before this one are sent.
            Some(FailureOutcome::DropAfterAccept) => SmtpAnswer { delay: None, reply: None, then: AfterAnswer::Close },
        };
        SmtpAnswer { delay: behaviour.delay, ..answer }
    }
}

impl MailHandler for SinkMailHandler {
    type Envelope = StoredMessage;

    fn connected(&self) {
        self.0.count_connection();
    }

    fn sender(&self, message: &mut StoredMessage, address: &str) -> SmtpAnswer {
        address.clone_into(&mut message.from);
        let positive = SmtpAnswer::reply("250 2.1.0 Sender accepted");
        self.answer_at(TransactionStage::Mail, positive, std::iter::once(&message.from))
    }

    async fn recipient(&self, message: &mut StoredMessage, address: &str) -> SmtpAnswer {
        let address = address.to_owned();
        let positive = SmtpAnswer::reply("250 2.1.5 Recipient accepted");
        let answer = self.answer_at(TransactionStage::Rcpt, positive, std::iter::once(&address));
        if answer.is_positive() {
            message.to.push(address);
        }
        answer
    }

    fn data(&self, message: &StoredMessage) -> SmtpAnswer {
        self.answer_at(TransactionStage::Data, SmtpAnswer::reply("354 Send it, then a dot"), message.to.iter())
    }

    fn data_begins(&self, message: &StoredMessage) -> SmtpAnswer {
        let silent = SmtpAnswer { delay: None, reply: None, then: AfterAnswer::Continue };
        self.answer_at(TransactionStage::Body, silent, message.to.iter())
    }

    async fn mail(&self, mut message: StoredMessage, mail: ReceivedMail) -> SmtpAnswer {
        let mut answer =
            self.answer_at(TransactionStage::Dot, SmtpAnswer::reply("250 2.0.0 Accepted"), message.to.iter());
        let is_accepted = answer.is_positive();
        if is_accepted || answer.reply.is_none() && answer.then == AfterAnswer::Close {
            message.source = mail.content;
            let id = self.0.accept(message);
            if is_accepted {
                answer.reply = Some(format!("250 2.0.0 Accepted as {id}").into());
            }
        }
        answer
    }
}
