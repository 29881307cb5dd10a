//! A tenant's account with a provider: its settings and its secret become a [`Provider`].

use std::sync::Arc;

use schemas::Lane;
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize};
use url::Url;

use super::{
    ClientSettings, HostPolicy, Provider, ProviderKind, SmtpProvider,
    host_policy::{is_region, own_url},
    http::{self, HttpProvider},
    rate_limit::{RateLimited, SlotLimiter},
};
use smtp::{Pool, Relay, SmtpSettings};

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
    #[error("{0} is not valid")]
    Invalid(&'static str),
    /// The base URL is neither the provider's own nor allowed.
    #[error("the base URL is not one of the provider's own https addresses, nor allowed by provider-allow-hosts")]
    BaseUrl,
    /// The HTTP client or the SMTP pool cannot be made.
    #[error("the connection cannot be set up")]
    Setup,
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
    /// Checks the settings and makes the providers of the bulk and the priority lane, which share the account's rate limit. Does no
    /// network access.
    ///
    /// # Errors
    /// [`ConnectionFault`].
    pub fn open(
        &self,
        client: &ClientSettings,
        host_policy: &HostPolicy,
    ) -> Result<[Box<dyn Provider>; 2], ConnectionFault> {
        self.check()?;
        let limiter = self.settings.max_per_second.map(|rate| Arc::new(SlotLimiter::new(rate)));
        let make = |lane| -> Result<Box<dyn Provider>, ConnectionFault> {
            let provider = self.unpaced(client, host_policy)?;
            Ok(match &limiter {
                Some(limiter) => Box::new(RateLimited::new(provider, limiter.clone(), lane)),
                None => provider,
            })
        };
        Ok([make(Lane::Bulk)?, make(Lane::Priority)?])
    }

    fn unpaced(&self, client: &ClientSettings, host_policy: &HostPolicy) -> Result<Box<dyn Provider>, ConnectionFault> {
        if self.kind == ProviderKind::Smtp {
            return self.smtp(client);
        }
        let base = match &self.settings.base_url {
            Some(url) => url.clone(),
            None => own_url(self.kind, &self.settings).ok_or(ConnectionFault::Invalid("region"))?,
        };
        if !host_policy.permits(self.kind, &base) {
            return Err(ConnectionFault::BaseUrl);
        }
        let api: Box<dyn http::Api> = match self.kind {
            ProviderKind::Smtp => return Err(ConnectionFault::Setup),
            ProviderKind::Ses => Box::new(http::Ses::new(&self.settings, &self.secret)?),
            ProviderKind::Postmark => Box::new(http::Postmark::new(&self.settings, self.secret.clone())),
            ProviderKind::Sendgrid => Box::new(http::Sendgrid::new(self.secret.clone())),
            ProviderKind::Mailgun => Box::new(http::Mailgun::new(&self.settings, self.secret.clone())?),
            ProviderKind::Resend => Box::new(http::Resend::new(self.secret.clone())),
        };
        Ok(Box::new(HttpProvider::new(api, base, client)?))
    }

    fn smtp(&self, client: &ClientSettings) -> Result<Box<dyn Provider>, ConnectionFault> {
        let relay: Relay = self.secret.expose_secret().parse().map_err(|_| ConnectionFault::Invalid("secret"))?;
        let settings = SmtpSettings { relay, max_connections: client.connections, ..client.smtp.clone() };
        let pool = Pool::new(settings).map_err(|_| ConnectionFault::Setup)?;
        Ok(Box::new(SmtpProvider::new(pool)))
    }

    fn check(&self) -> Result<(), ConnectionFault> {
        use ProviderKind::{Mailgun, Postmark, Sendgrid, Ses};
        let settings = &self.settings;
        let takes: [(&'static str, bool, &[ProviderKind]); 5] = [
            ("region", settings.region.is_some(), &[Ses, Sendgrid, Mailgun]),
            ("domain", settings.domain.is_some(), &[Mailgun]),
            ("stream", settings.stream.is_some(), &[Postmark]),
            ("configuration-set", settings.configuration_set.is_some(), &[Ses]),
            ("base-url", settings.base_url.is_some() && self.kind == ProviderKind::Smtp, &[]),
        ];
        if let Some((name, ..)) = takes.iter().find(|(_, set, kinds)| *set && !kinds.contains(&self.kind)) {
            return Err(ConnectionFault::Foreign(name));
        }
        if settings.max_per_second == Some(0) {
            return Err(ConnectionFault::Invalid("max-per-second"));
        }
        match self.kind {
            Ses if settings.region.is_none() => return Err(ConnectionFault::Missing("region")),
            Ses if !settings.region.as_deref().is_some_and(is_region) => {
                return Err(ConnectionFault::Invalid("region"));
            }
            Mailgun if settings.domain.is_none() => return Err(ConnectionFault::Missing("domain")),
            _ => {}
        }
        let secret = self.secret.expose_secret();
        let is_visible =
            !secret.is_empty() && secret.len() <= 4096 && secret.bytes().all(|byte| byte.is_ascii_graphic());
        if is_visible { Ok(()) } else { Err(ConnectionFault::Invalid("secret")) }
    }
}
