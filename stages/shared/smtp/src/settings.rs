//! How to reach the relay, and for how long to wait for it.

use std::{path::PathBuf, str::FromStr, time::Duration};

use runtime::outbound::SetupError;
use secrecy::SecretString;
use url::Url;

/// Whether a connection is encrypted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TlsMode {
    /// Never; for a relay on the same machine or network.
    None,
    /// STARTTLS when the server offers it, with the certificate checked; else in clear, and then without credentials.
    Opportunistic,
    /// STARTTLS, or no connection.
    Required,
    /// TLS from the first octet (`smtps://`, RFC 8314).
    Implicit,
}

schemas::named_enum! {
    /// An authentication mechanism (RFC 4954).
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum AuthMechanism {
        /// PLAIN (RFC 4616).
        Plain = "PLAIN",
        /// LOGIN, for servers that know no other.
        Login = "LOGIN",
        /// XOAUTH2: the password is an access token.
        XOAuth2 = "XOAUTH2",
    }
}

/// User and password for AUTH. The password does not print.
#[derive(Debug, Clone)]
pub struct SmtpCredentials {
    /// The user name.
    pub user: String,
    /// The password, or the access token for XOAUTH2.
    pub password: SecretString,
    /// The mechanism to use; `None` takes PLAIN, else LOGIN, whichever the server offers.
    pub mechanism: Option<AuthMechanism>,
}

/// Which relay, from a URL such as `smtp://user:pass@relay.example.com:587?tls=required` or `smtps://relay.example.com`.
///
/// `tls` is `none`, `opportunistic` or `required`; `smtp://` without it is `required` when there are credentials and
/// `opportunistic` when there are none. `auth` is `plain`, `login` or `xoauth2`. The port defaults to 25, or 465 for `smtps`.
#[derive(Debug, Clone)]
pub struct Relay {
    /// Host name or address literal, also the name the certificate must carry.
    pub host: String,
    /// TCP port.
    pub port: u16,
    /// Encryption.
    pub tls: TlsMode,
    /// What to authenticate with, if anything.
    pub credentials: Option<SmtpCredentials>,
}

/// A setting that cannot work. Shown at start; never carries the URL, which may hold a password.
#[derive(Debug, thiserror::Error)]
pub enum SmtpSettingsError {
    /// Not a URL, or one without a host.
    #[error("the relay URL is malformed: expected smtp[s]://[user:password@]host[:port][?tls=…]")]
    Url,
    /// Neither `smtp` nor `smtps`.
    #[error("the relay URL must begin with smtp:// or smtps://")]
    Scheme,
    /// A parameter or a value we do not know.
    #[error("the relay URL has an unknown parameter or value: {0}")]
    Parameter(String),
    /// A user without a password, or the other way round.
    #[error("the relay URL needs both user and password, or neither")]
    SmtpCredentials,
    /// TLS cannot be set up, or the extra CA file cannot be read.
    #[error(transparent)]
    Tls(#[from] SetupError),
    /// A number that must be at least one is zero, or a name is unfit for EHLO.
    #[error("{0}")]
    Value(&'static str),
}

impl FromStr for Relay {
    type Err = SmtpSettingsError;

    fn from_str(text: &str) -> Result<Self, SmtpSettingsError> {
        let url = Url::parse(text).map_err(|_| SmtpSettingsError::Url)?;
        let implicit = match url.scheme() {
            "smtp" => false,
            "smtps" => true,
            _ => return Err(SmtpSettingsError::Scheme),
        };
        let host = url.host_str().filter(|host| !host.is_empty()).ok_or(SmtpSettingsError::Url)?;
        if !matches!(url.path(), "" | "/") || url.fragment().is_some() {
            return Err(SmtpSettingsError::Url);
        }
        let mut tls = None;
        let mut mechanism = None;
        for (name, value) in url.query_pairs() {
            match (name.as_ref(), value.as_ref()) {
                ("tls", "none") if !implicit => tls = Some(TlsMode::None),
                ("tls", "opportunistic") if !implicit => tls = Some(TlsMode::Opportunistic),
                ("tls", "required") => tls = Some(if implicit { TlsMode::Implicit } else { TlsMode::Required }),
                ("auth", "plain") => mechanism = Some(AuthMechanism::Plain),
                ("auth", "login") => mechanism = Some(AuthMechanism::Login),
                ("auth", "xoauth2") => mechanism = Some(AuthMechanism::XOAuth2),
                _ => return Err(SmtpSettingsError::Parameter(format!("{name}={value}"))),
            }
        }
        let credentials = credentials(&url, mechanism)?;
        let default = match (implicit, &credentials) {
            (true, _) => TlsMode::Implicit,
            (false, Some(_)) => TlsMode::Required,
            (false, None) => TlsMode::Opportunistic,
        };
        Ok(Self {
            host: host.trim_start_matches('[').trim_end_matches(']').to_owned(),
            port: url.port().unwrap_or(if implicit { 465 } else { 25 }),
            tls: tls.unwrap_or(default),
            credentials,
        })
    }
}

fn credentials(url: &Url, mechanism: Option<AuthMechanism>) -> Result<Option<SmtpCredentials>, SmtpSettingsError> {
    match (url.username(), url.password()) {
        ("", None) if mechanism.is_none() => Ok(None),
        ("", _) | (_, None) => Err(SmtpSettingsError::SmtpCredentials),
        (user, Some(password)) => Ok(Some(SmtpCredentials {
            user: percent_decode(user)?,
            password: SecretString::from(percent_decode(password)?),
            mechanism,
        })),
    }
}

/// Decodes `%41`; what is decoded must be UTF-8 without NUL, which AUTH PLAIN uses as its separator.
fn percent_decode(text: &str) -> Result<String, SmtpSettingsError> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, tail)) = rest.split_first() {
        rest = tail;
        if byte != b'%' {
            out.push(byte);
            continue;
        }
        let (digits, tail) = rest.split_at_checked(2).ok_or(SmtpSettingsError::Url)?;
        out.extend(hex::decode(digits).map_err(|_| SmtpSettingsError::Url)?);
        rest = tail;
    }
    String::from_utf8(out).ok().filter(|text| !text.contains('\0')).ok_or(SmtpSettingsError::Url)
}

/// How long each call may take. The defaults follow RFC 5321 §4.5.3.2 where waiting longer avoids a duplicate (the final
/// dot) and are shorter where nothing is lost by trying again later.
#[derive(Debug, Clone)]
pub struct SmtpTimeouts {
    /// Name lookup, TCP connection and TLS handshake, each. RFC: not named.
    pub connect: Duration,
    /// Each reply to the greeting, EHLO and AUTH; all replies to MAIL, RCPT and DATA together. RFC: 5 minutes, DATA 2.
    pub command: Duration,
    /// Writing the body. RFC: 3 minutes for each block.
    pub body: Duration,
    /// The reply to the message, and to what left in one write with it. RFC: 10 minutes, as giving up here makes duplicates or doubts.
    pub last: Duration,
    /// The reply to QUIT, when a connection is retired. Nothing depends on it.
    pub quit: Duration,
}

impl Default for SmtpTimeouts {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(30),
            command: Duration::from_secs(120),
            body: Duration::from_secs(180),
            last: Duration::from_secs(600),
            quit: Duration::from_secs(2),
        }
    }
}

/// Everything the pool needs to know.
#[derive(Debug, Clone)]
pub struct SmtpSettings {
    /// The relay.
    pub relay: Relay,
    /// The route in the metrics: `relay`, or `connection` for a tenant's own server.
    pub route: &'static str,
    /// The name we give in EHLO: this host's name, or an address literal.
    pub hello_name: String,
    /// The most connections at once, idle ones included.
    pub max_connections: usize,
    /// After so many messages a connection is closed with QUIT; large relays close it themselves at some number.
    pub max_messages_per_connection: u32,
    /// A connection that was idle for so long is closed with QUIT.
    pub idle_timeout: Duration,
    /// A PEM file with further certificate authorities to trust, beside Mozilla's.
    pub ca_file: Option<PathBuf>,
    /// How long each call may take.
    pub timeouts: SmtpTimeouts,
}

impl SmtpSettings {
    /// Settings for a relay, with the defaults for everything else: 32 connections, 1,000 messages each, 60 s idle.
    #[must_use]
    pub fn new(relay: Relay, hello_name: impl Into<String>) -> Self {
        Self {
            relay,
            route: "relay",
            hello_name: hello_name.into(),
            max_connections: 32,
            max_messages_per_connection: 1_000,
            idle_timeout: Duration::from_secs(60),
            ca_file: None,
            timeouts: SmtpTimeouts::default(),
        }
    }

    /// Checks the rules between fields.
    pub fn check(&self) -> Result<(), SmtpSettingsError> {
        let name_is_fit = !self.hello_name.is_empty()
            && self.hello_name.len() <= 255
            && self.hello_name.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'<' && byte != b'>');
        if !name_is_fit {
            return Err(SmtpSettingsError::Value("the EHLO name must be a host name or an address literal"));
        }
        if self.max_connections == 0 || self.max_messages_per_connection == 0 {
            return Err(SmtpSettingsError::Value("an SMTP pool needs at least one connection and one message on each"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use secrecy::ExposeSecret;

    #[rstest]
    #[case::plain("smtp://127.0.0.1:2525", "127.0.0.1", 2525, TlsMode::Opportunistic)]
    #[case::default_port("smtp://relay.example.com", "relay.example.com", 25, TlsMode::Opportunistic)]
    #[case::none("smtp://relay:25?tls=none", "relay", 25, TlsMode::None)]
    #[case::with_user("smtp://u:p@relay.example.com:587", "relay.example.com", 587, TlsMode::Required)]
    #[case::user_in_clear("smtp://u:p@relay.example.com?tls=none", "relay.example.com", 25, TlsMode::None)]
    #[case::implicit("smtps://relay.example.com", "relay.example.com", 465, TlsMode::Implicit)]
    #[case::six("smtp://[::1]:2525/?tls=required", "::1", 2525, TlsMode::Required)]
    fn a_relay_url_is_read(#[case] url: &str, #[case] host: &str, #[case] port: u16, #[case] tls: TlsMode) {
        let relay: Relay = url.parse().unwrap();
        assert_eq!((relay.host.as_str(), relay.port, relay.tls), (host, port, tls));
    }

    #[rstest]
    #[case::scheme("http://relay.example.com")]
    #[case::no_host("smtp://")]
    #[case::path("smtp://relay.example.com/inbox")]
    #[case::tls("smtp://relay.example.com?tls=maybe")]
    #[case::clear_over_smtps("smtps://relay.example.com?tls=none")]
    #[case::unknown("smtp://relay.example.com?verify=false")]
    #[case::user_only("smtp://user@relay.example.com")]
    #[case::mechanism_only("smtp://relay.example.com?auth=plain")]
    #[case::nul("smtp://u:a%00b@relay.example.com")]
    fn a_relay_url_with_a_fault_is_refused(#[case] url: &str) {
        assert!(url.parse::<Relay>().is_err());
    }

    #[test]
    fn credentials_are_percent_decoded_and_do_not_print() {
        let relay: Relay = "smtp://ann%40example.com:p%40ss%3Aword@relay?auth=xoauth2".parse().unwrap();
        let credentials = relay.credentials.as_ref().unwrap();
        assert_eq!((credentials.user.as_str(), credentials.password.expose_secret()), ("ann@example.com", "p@ss:word"));
        assert_eq!(credentials.mechanism, Some(AuthMechanism::XOAuth2));
        assert!(!format!("{relay:?}").contains("p@ss"));
    }

    #[rstest]
    #[case::name(|s: &mut SmtpSettings| s.hello_name = "a b".into())]
    #[case::injected(|s: &mut SmtpSettings| s.hello_name = "a\r\nMAIL".into())]
    #[case::connections(|s: &mut SmtpSettings| s.max_connections = 0)]
    fn settings_that_cannot_work_are_refused(#[case] change: fn(&mut SmtpSettings)) {
        let mut settings = SmtpSettings::new("smtp://relay".parse().unwrap(), "host.example.com");
        assert!(settings.check().is_ok());
        change(&mut settings);
        assert!(settings.check().is_err());
    }
}
