//! Each provider against a stand-in that checks what it is asked and plays recorded answers.

mod answers;
mod faults;
mod requests;
pub(crate) mod stand_in;

use std::time::{Duration, Instant};

use secrecy::SecretString;
use uuid::Uuid;

use self::stand_in::StandIn;
use super::{
    ClientSettings, Connection, ConnectionSettings, HostPolicy, OutgoingMessage, Provider, ProviderKind, Refused,
    SendResult, open,
};
use smtp::{Envelope, EnvelopeAddress, SmtpMessage, SmtpSettings};

pub const HTTP: [ProviderKind; 5] =
    [ProviderKind::Ses, ProviderKind::Postmark, ProviderKind::Sendgrid, ProviderKind::Mailgun, ProviderKind::Resend];
pub const SEND: Uuid = Uuid::from_u128(0x0198_c0de_0000_7000_8000_0000_0000_0001);
/// The address in the message's `To`.
pub const RECIPIENT: &str = "jurgen@example.com";
pub const SIGNATURE: &str = "DKIM-Signature: v=1; a=rsa-sha256; d=acme.example; b=AAAA\r\n";

/// A mail with everything in it: both bodies, an invite, a file, list headers, names that need encoding.
pub fn message() -> SmtpMessage {
    let text = "Message-ID: <0198c0de-0000-7000-8000-000000000001@acme.example>\r\n\
        X-Postrider-Send: 0198c0de-0000-7000-8000-000000000001\r\n\
        Date: Fri, 20 Nov 2026 12:00:00 +0000\r\n\
        From: \"Acme, Inc.\" <news@acme.example>\r\n\
        Reply-To: <answers@acme.example>\r\n\
        To: =?utf-8?Q?J=C3=BCrgen?= <jurgen@example.com>\r\n\
        Subject: =?utf-8?Q?Gr=C3=BC=C3=9Fe?=\r\n\
        List-Unsubscribe:\r\n <https://link.acme.example/u/token>\r\n\
        List-Unsubscribe-Post: List-Unsubscribe=One-Click\r\n\
        List-Id: <tenant.acme.example>\r\n\
        Feedback-ID: c:t:marketing:postrider\r\n\
        MIME-Version: 1.0\r\n\
        Content-Type: multipart/mixed; boundary=outer\r\n\r\n\
        --outer\r\nContent-Type: multipart/alternative; boundary=inner\r\n\r\n\
        --inner\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Transfer-Encoding: quoted-printable\r\n\r\n\
        Hallo J=C3=BCrgen\r\n\
        --inner\r\nContent-Type: text/html; charset=utf-8\r\nContent-Transfer-Encoding: quoted-printable\r\n\r\n\
        <p>Hallo J=C3=BCrgen</p>\r\n\
        --inner\r\nContent-Type: text/calendar; method=REQUEST; charset=utf-8\r\nContent-Transfer-Encoding: base64\r\n\r\n\
        QkVHSU46VkNBTEVOREFS\r\n--inner--\r\n\
        --outer\r\nContent-Type: application/ics\r\nContent-Transfer-Encoding: base64\r\n\
        Content-Disposition: attachment; filename=\"invite.ics\"\r\n\r\nQkVHSU46VkNBTEVOREFS\r\n\
        --outer\r\nContent-Type: application/pdf; name=\"offer.pdf\"\r\nContent-Transfer-Encoding: base64\r\n\
        Content-Disposition: attachment; filename=\"offer.pdf\"\r\n\r\nJVBERi0xLjQK\r\n--outer--\r\n";
    SmtpMessage::new(text.as_bytes().to_vec()).unwrap()
}

pub fn envelope(message: &SmtpMessage, recipient: &str) -> Envelope {
    Envelope {
        from: Some(EnvelopeAddress::parse("b-1@send.acme.example").unwrap()),
        to: EnvelopeAddress::parse(recipient).unwrap(),
        size: message.as_bytes().len(),
        eight_bit: false,
        international: false,
    }
}

/// What a tenant would have set.
pub fn settings(kind: ProviderKind) -> ConnectionSettings {
    let text = |text: &str| Some(text.to_owned());
    match kind {
        ProviderKind::Ses => {
            ConnectionSettings { region: text("eu-central-1"), configuration_set: text("events"), ..Default::default() }
        }
        ProviderKind::Postmark => ConnectionSettings { stream: text("broadcast"), ..Default::default() },
        ProviderKind::Mailgun => ConnectionSettings { domain: text("mg.acme.example"), ..Default::default() },
        _ => ConnectionSettings::default(),
    }
}

pub fn secret(kind: ProviderKind) -> SecretString {
    SecretString::from(if kind == ProviderKind::Ses { "AKIDEXAMPLE:secret-key" } else { "the-key" })
}

/// Longer than any answer takes that comes at all.
pub const LONG: Duration = Duration::from_secs(20);
/// For an answer that never comes.
pub const SHORT: Duration = Duration::from_secs(1);

pub fn reach(timeout: Duration) -> ClientSettings {
    ClientSettings {
        connections: 4,
        timeout,
        connect_timeout: LONG,
        smtp: SmtpSettings::new("smtp://127.0.0.1:1?tls=none".parse().unwrap(), "test.example"),
    }
}

/// The provider, spoken to at the stand-in.
pub fn provider(kind: ProviderKind, stand_in: &StandIn) -> Box<dyn Provider> {
    provider_within(kind, stand_in, LONG)
}

pub fn provider_within(kind: ProviderKind, stand_in: &StandIn, timeout: Duration) -> Box<dyn Provider> {
    let mut settings = settings(kind);
    settings.base_url = Some(stand_in.url());
    let connection = Connection { kind, settings, secret: secret(kind) };
    open(&connection, &reach(timeout), &HostPolicy::allowing(&[stand_in.host()])).unwrap()
}

/// One mail, both halves.
pub async fn send(provider: &dyn Provider) -> Result<SendResult, Refused> {
    send_within(provider, LONG).await
}

pub async fn send_within(provider: &dyn Provider, life: Duration) -> Result<SendResult, Refused> {
    send_to(provider, RECIPIENT, life).await
}

pub async fn send_to(provider: &dyn Provider, recipient: &str, life: Duration) -> Result<SendResult, Refused> {
    send_message(provider, &message(), recipient, life).await
}

pub async fn send_message(
    provider: &dyn Provider,
    message: &SmtpMessage,
    recipient: &str,
    life: Duration,
) -> Result<SendResult, Refused> {
    let envelope = envelope(message, recipient);
    let outgoing = OutgoingMessage { send_id: SEND, serial: 1, envelope: &envelope, signature: SIGNATURE, message };
    let mut opened = provider.prepare(&outgoing).await?;
    opened.send(&outgoing, Instant::now() + life).await
}
