//! The settings and the secret of a tenant's account with a provider.

use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize};
use smtp::Relay;
use url::Url;

use super::{
    HostPolicy, ProviderKind,
    host_policy::{is_region, own_url},
};

/// The longest secret, in bytes.
pub const SECRET_MAX_BYTES: usize = 4096;

/// The settings of a connection that are not secret: `provider_connections.settings`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConnectionSettings {
    /// SES: the AWS region. SendGrid, Mailgun: `us` (the default) or `eu`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub region: Option<String>,
    /// Mailgun: the domain the account sends for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub domain: Option<String>,
    /// Postmark: the message stream; its default one if not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stream: Option<String>,
    /// SES: the configuration set, which publishes events.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub configuration_set: Option<String>,
    /// Most mails a second, of each delivery process; no limit of ours if not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_per_second: Option<u32>,
    /// The API's URL if it is not the provider's own: a test server that the operator allows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base_url: Option<Url>,
}

impl ConnectionSettings {
    /// Checks the settings for a provider, and answers the URL of its API; `None` for SMTP.
    ///
    /// # Errors
    /// [`ConnectionFault`].
    pub fn check(&self, kind: ProviderKind, host_policy: &HostPolicy) -> Result<Option<Url>, ConnectionFault> {
        self.check_each(kind)?;
        if kind == ProviderKind::Smtp {
            return Ok(None);
        }
        let base = match &self.base_url {
            Some(url) => url.clone(),
            None => own_url(kind, self).ok_or(ConnectionFault::Invalid("region"))?,
        };
        if host_policy.permits(kind, &base) { Ok(Some(base)) } else { Err(ConnectionFault::BaseUrl) }
    }

    fn check_each(&self, kind: ProviderKind) -> Result<(), ConnectionFault> {
        use ProviderKind::{Mailgun, Postmark, Sendgrid, Ses};
        let takes: [(&'static str, bool, &[ProviderKind]); 5] = [
            ("region", self.region.is_some(), &[Ses, Sendgrid, Mailgun]),
            ("domain", self.domain.is_some(), &[Mailgun]),
            ("stream", self.stream.is_some(), &[Postmark]),
            ("configuration-set", self.configuration_set.is_some(), &[Ses]),
            ("base-url", self.base_url.is_some() && kind == ProviderKind::Smtp, &[]),
        ];
        if let Some((name, ..)) = takes.iter().find(|(_, set, kinds)| *set && !kinds.contains(&kind)) {
            return Err(ConnectionFault::Foreign(name));
        }
        if self.max_per_second == Some(0) {
            return Err(ConnectionFault::Invalid("max-per-second"));
        }
        match (kind, self.region.as_deref(), self.domain.as_deref()) {
            (Ses, None, _) => Err(ConnectionFault::Missing("region")),
            (Ses, Some(region), _) if !is_region(region) => Err(ConnectionFault::Invalid("region")),
            (Mailgun, _, None) => Err(ConnectionFault::Missing("domain")),
            // It becomes part of a path.
            (Mailgun, _, Some(domain)) if schemas::address::canonical_domain(domain).is_none() => {
                Err(ConnectionFault::Invalid("domain"))
            }
            _ => Ok(()),
        }
    }
}

/// What a valid value of a setting, or a valid secret, looks like.
fn form_of(setting: &str) -> &'static str {
    match setting {
        "region" => "an AWS region such as eu-central-1, of SendGrid and Mailgun us or eu",
        "secret" => {
            "`access key id:secret access key[:session token]` of SES, the relay's URL of SMTP, else the API key, \
             without spaces"
        }
        "domain" => "a domain name",
        _ => "a number from 1",
    }
}

/// Why a connection's settings or secret cannot work. Never contains the secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ConnectionFault {
    /// A setting the provider needs is missing.
    #[error("{0} is needed for this provider")]
    Missing(&'static str),
    /// A setting that belongs to another provider.
    #[error("{0} is not a setting of this provider")]
    Foreign(&'static str),
    /// A setting with an invalid value.
    #[error("{0} is not valid; it is {form}", form = form_of(.0))]
    Invalid(&'static str),
    /// The base URL is neither the provider's own nor allowed.
    #[error("the base URL is not one of the provider's own https addresses, nor allowed by provider-allow-hosts")]
    BaseUrl,
    /// The HTTP client or the SMTP pool cannot be made.
    #[error("the connection cannot be set up")]
    Setup,
}

impl ConnectionFault {
    /// The setting that is at fault, or `secret`; `None` if it is none of them.
    #[must_use]
    pub fn setting(self) -> Option<&'static str> {
        match self {
            Self::Missing(name) | Self::Foreign(name) | Self::Invalid(name) => Some(name),
            Self::BaseUrl => Some("base-url"),
            Self::Setup => None,
        }
    }
}

/// A tenant's account with a provider.
#[derive(Debug, Clone)]
pub struct Connection {
    /// Which provider.
    pub kind: ProviderKind,
    /// The settings that are not secret.
    pub settings: ConnectionSettings,
    /// SMTP: the relay's URL, as the setting `smtp-url`. SES: `access key id:secret access key[:session token]`. Others: the API key.
    pub secret: SecretString,
}

impl Connection {
    /// Checks settings and secret, and answers the URL of the provider's API; `None` for SMTP. Does no network access.
    ///
    /// # Errors
    /// [`ConnectionFault`].
    pub fn check(&self, host_policy: &HostPolicy) -> Result<Option<Url>, ConnectionFault> {
        let base = self.settings.check(self.kind, host_policy)?;
        check_secret(self.kind, &self.secret)?;
        Ok(base)
    }
}

/// Checks that a secret has the form its provider's have.
///
/// # Errors
/// [`ConnectionFault::Invalid`].
pub fn check_secret(kind: ProviderKind, secret: &SecretString) -> Result<(), ConnectionFault> {
    let secret = secret.expose_secret();
    let is_visible =
        !secret.is_empty() && secret.len() <= SECRET_MAX_BYTES && secret.bytes().all(|byte| byte.is_ascii_graphic());
    let fits = match kind {
        ProviderKind::Ses => secret.contains(':'),
        ProviderKind::Smtp => secret.parse::<Relay>().is_ok(),
        _ => true,
    };
    if is_visible && fits { Ok(()) } else { Err(ConnectionFault::Invalid("secret")) }
}
