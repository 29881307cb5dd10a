//! SMTP: the platform's relay, or a tenant's own.

use std::time::Instant;

use async_trait::async_trait;

use super::{Answer, OutgoingMessage, PingFault, PreparedSend, Provider, ProviderKind, Refused, SendResult, Signing};
use smtp::classify::classify;
use smtp::{Cause, Pool, PooledConnection, Reply, SmtpFailure, SmtpMessage};

#[async_trait]
impl Provider for Pool {
    fn kind(&self) -> ProviderKind {
        ProviderKind::Smtp
    }

    fn signing(&self) -> Signing {
        // Over SMTP as well, SES replaces Message-ID and Date.
        let host = self.host().to_ascii_lowercase();
        let is_ses = host.ends_with(".amazonaws.com") || host.ends_with(".amazonaws.com.cn");
        if is_ses { Signing::Stamped } else { Signing::Whole }
    }

    async fn prepare<'a>(&'a self, outgoing: &OutgoingMessage<'_>) -> Result<Box<dyn PreparedSend + 'a>, Refused> {
        match self.take(outgoing.envelope).await {
            Ok(connection) => Ok(Box::new(connection)),
            Err(failure) => Err(refused(&failure)),
        }
    }

    async fn ping(&self) -> Result<(), PingFault> {
        Pool::ping(self).await.map_err(|failure| PingFault::of_smtp(&failure))
    }
}

#[async_trait]
impl PreparedSend for PooledConnection {
    async fn send(&mut self, outgoing: &OutgoingMessage<'_>, begin_by: Instant) -> Result<SendResult, Refused> {
        let OutgoingMessage { envelope, signature, message, .. } = *outgoing;
        match PooledConnection::send(self, envelope, signature, message, begin_by).await {
            Ok(reply) => {
                Ok(SendResult::Accepted { provider_message_id: message_id(message), answer: answer(Some(&reply)) })
            }
            Err(SmtpFailure { cause: Cause::FenceTooOld | Cause::ChunkingRefused, .. }) => Ok(SendResult::NotBegun),
            Err(failure) => Err(refused(&failure)),
        }
    }
}

fn refused(failure: &SmtpFailure) -> Refused {
    Refused { decision: classify(failure), answer: answer(failure.reply()), wait: None }
}

/// An SMTP reply as the ledger stores it.
pub(crate) fn answer(reply: Option<&Reply>) -> Answer {
    let Some(reply) = reply else { return Answer::default() };
    Answer {
        code: i16::try_from(reply.code).ok(),
        enhanced: reply.enhanced.map(|code| code.to_string()),
        ..Answer::text(&reply.text)
    }
}

/// The longest Message-ID kept.
const MESSAGE_ID_MAX: usize = 255;

/// The value of the Message-ID field, which our renderer writes on one line.
pub(super) fn message_id(message: &SmtpMessage) -> Option<String> {
    const NAME: &[u8] = b"message-id:";
    let is_id = |line: &&[u8]| line.get(..NAME.len()).is_some_and(|name| name.eq_ignore_ascii_case(NAME));
    let line = message.header().split(|octet| *octet == b'\n').find(is_id)?;
    let text = std::str::from_utf8(line[NAME.len()..].trim_ascii()).ok()?;
    (!text.is_empty() && text.len() <= MESSAGE_ID_MAX).then(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use smtp::SmtpSettings;

    #[rstest]
    #[case::ses("smtp://email-smtp.eu-central-1.amazonaws.com:587?tls=none", Signing::Stamped)]
    #[case::ses_of_china("smtp://Email-SMTP.cn-north-1.amazonaws.com.cn?tls=none", Signing::Stamped)]
    #[case::another("smtp://relay.acme.example?tls=none", Signing::Whole)]
    #[case::a_similar_name("smtp://amazonaws.com.acme.example?tls=none", Signing::Whole)]
    #[tokio::test]
    async fn a_relay_that_replaces_fields_gets_no_signature_over_them(#[case] relay: &str, #[case] expected: Signing) {
        let pool = Pool::new(SmtpSettings::new(relay.parse().unwrap(), "test.example")).unwrap();
        assert_eq!(pool.signing(), expected);
    }

    #[rstest]
    #[case::first("Message-ID: <a@b.example>\r\nSubject: x\r\n\r\n", Some("<a@b.example>"))]
    #[case::later("Subject: Message-ID: <no>\r\nmessage-id:<a@b.example>\r\n\r\n", Some("<a@b.example>"))]
    #[case::none("Subject: x\r\n\r\nMessage-ID: <body>\r\n", None)]
    fn the_message_id_is_read_from_the_header(#[case] text: &str, #[case] expected: Option<&str>) {
        let message = SmtpMessage::new(text.as_bytes().to_vec()).unwrap();
        assert_eq!(message_id(&message).as_deref(), expected);
    }
}
