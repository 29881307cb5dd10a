//! A tenant's account with a provider becomes a [`Provider`].

use std::sync::Arc;

use schemas::Lane;
use secrecy::ExposeSecret;

use super::{
    ClientSettings, Connection, ConnectionFault, HostPolicy, Provider, ProviderKind, SmtpProvider,
    http::{self, HttpProvider},
    rate_limit::{RateLimited, SlotLimiter},
};
use smtp::{Pool, Relay, SmtpSettings};

/// Checks a connection's settings and makes the providers of the bulk and the priority lane, which share the account's rate limit.
/// Does no network access.
///
/// # Errors
/// [`ConnectionFault`].
pub fn open(
    connection: &Connection,
    client: &ClientSettings,
    host_policy: &HostPolicy,
) -> Result<[Box<dyn Provider>; 2], ConnectionFault> {
    let limiter = connection.settings.max_per_second.map(|rate| Arc::new(SlotLimiter::new(rate)));
    let make = |lane| -> Result<Box<dyn Provider>, ConnectionFault> {
        let provider = unpaced(connection, client, host_policy)?;
        Ok(match &limiter {
            Some(limiter) => Box::new(RateLimited::new(provider, limiter.clone(), lane)),
            None => provider,
        })
    };
    Ok([make(Lane::Bulk)?, make(Lane::Priority)?])
}

fn unpaced(
    connection: &Connection,
    client: &ClientSettings,
    host_policy: &HostPolicy,
) -> Result<Box<dyn Provider>, ConnectionFault> {
    let Connection { kind, settings, secret } = connection;
    let Some(base) = connection.check(host_policy)? else { return smtp(connection, client) };
    let api: Box<dyn http::Api> = match kind {
        ProviderKind::Smtp => return Err(ConnectionFault::Setup),
        ProviderKind::Ses => Box::new(http::Ses::new(settings, secret)?),
        ProviderKind::Postmark => Box::new(http::Postmark::new(settings, secret.clone())),
        ProviderKind::Sendgrid => Box::new(http::Sendgrid::new(secret.clone())),
        ProviderKind::Mailgun => Box::new(http::Mailgun::new(settings, secret.clone())?),
        ProviderKind::Resend => Box::new(http::Resend::new(secret.clone())),
    };
    Ok(Box::new(HttpProvider::new(*kind, api, base, client)?))
}

fn smtp(connection: &Connection, client: &ClientSettings) -> Result<Box<dyn Provider>, ConnectionFault> {
    let relay: Relay = connection.secret.expose_secret().parse().map_err(|_| ConnectionFault::Invalid("secret"))?;
    let settings = SmtpSettings { relay, max_connections: client.connections, ..client.smtp.clone() };
    let pool = Pool::new(settings).map_err(|_| ConnectionFault::Setup)?;
    Ok(Box::new(SmtpProvider::new(pool)))
}
