//! What an operator can set about the assistant endpoint, and what follows from it.

use clap::Args;
use runtime::outbound::SetupError;
use url::{Host, Url};

use crate::METADATA_PATH;

/// The settings of the assistant endpoint. Each is a flag `--some-name` and an environment variable `POSTRIDER_SOME_NAME`.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "AI assistants")]
#[group(skip)]
pub struct Settings {
    /// The OAuth authorization server whose access tokens `/mcp` takes, exactly as its tokens spell it (`iss`). Without it the
    /// endpoint does not exist. https, except on loopback.
    #[arg(long, env = "POSTRIDER_MCP_ISSUER")]
    pub mcp_issuer: Option<String>,
    /// The public URL of the endpoint, which tokens must be made for (`aud`): `https://mail.example.com/mcp`.
    #[arg(long, env = "POSTRIDER_MCP_RESOURCE")]
    pub mcp_resource: Option<String>,
    /// Where the issuer publishes its keys. Without it, its own metadata is asked.
    #[arg(long, env = "POSTRIDER_MCP_JWKS_URL")]
    pub mcp_jwks_url: Option<String>,
    /// The OAuth clients of the pilot, comma-separated; tokens of others are refused, whatever was approved.
    #[arg(long, env = "POSTRIDER_MCP_CLIENTS", value_delimiter = ',')]
    pub mcp_clients: Vec<String>,
    /// Requests each approval may make in any sixty seconds, over all ingress processes.
    #[arg(long, env = "POSTRIDER_MCP_RATE_PER_MINUTE", default_value_t = 60)]
    pub mcp_rate_per_minute: u32,
}

/// Settings of the assistant endpoint that do not work.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Two settings that need each other.
    #[error("{0}")]
    Contradiction(&'static str),
    /// Not a URL, or not one that keeps tokens and keys from being read and changed on their way.
    #[error("{0} must be an https URL without user, query or fragment (http only on loopback)")]
    Url(&'static str),
    /// The HTTP client for the issuer's keys.
    #[error("the client for the issuer's keys")]
    Client(#[from] reqwest::Error),
    /// The TLS of that client.
    #[error("the client for the issuer's keys: {0}")]
    Tls(#[from] SetupError),
}

/// The settings of an endpoint that is on.
#[derive(Debug, Clone)]
pub(crate) struct Terms {
    /// As tokens spell it.
    pub(crate) issuer: String,
    pub(crate) issuer_url: Url,
    /// As tokens spell it.
    pub(crate) resource: String,
    pub(crate) resource_url: Url,
    pub(crate) jwks_url: Option<Url>,
    pub(crate) clients: Vec<String>,
    pub(crate) rate_per_minute: u32,
}

impl Settings {
    /// `None` when the endpoint is off.
    pub(crate) fn terms(&self) -> Result<Option<Terms>, StartError> {
        let Some(issuer) = &self.mcp_issuer else {
            let others = self.mcp_resource.is_some() || self.mcp_jwks_url.is_some() || !self.mcp_clients.is_empty();
            return if others {
                Err(StartError::Contradiction("the assistant endpoint has settings, but no mcp-issuer"))
            } else {
                Ok(None)
            };
        };
        let missing = StartError::Contradiction("mcp-issuer needs mcp-resource, the endpoint's public URL");
        let resource = self.mcp_resource.as_ref().ok_or(missing)?;
        let clients = self.mcp_clients.iter().map(|client| client.trim().to_owned());
        let clients: Vec<String> = clients.filter(|client| !client.is_empty()).collect();
        if clients.is_empty() {
            return Err(StartError::Contradiction("mcp-issuer needs mcp-clients, the clients that may connect"));
        }
        let issuer_url = named_url(issuer, "mcp-issuer")?;
        let jwks_url = self.mcp_jwks_url.as_ref().map(|text| key_url(text, &issuer_url)).transpose()?;
        Ok(Some(Terms {
            issuer: issuer.clone(),
            issuer_url,
            resource: resource.clone(),
            resource_url: named_url(resource, "mcp-resource")?,
            jwks_url,
            clients,
            rate_per_minute: self.mcp_rate_per_minute.max(1),
        }))
    }
}

impl Terms {
    /// Where clients find the metadata of the endpoint: the public URL's path inserted behind the well-known one (RFC 9728 §3.1).
    pub(crate) fn metadata_url(&self) -> String {
        let mut url = self.resource_url.clone();
        // Behind a proxy that puts the endpoint elsewhere only the plain form is sure to reach us.
        let path = if url.path() == crate::PATH { crate::METADATA_PATH_OF_ENDPOINT } else { METADATA_PATH };
        url.set_path(path);
        url.into()
    }
}

/// A URL that may carry secrets: https, or http on this very machine. It names no user.
fn safe_url(text: &str) -> Option<Url> {
    let url = Url::parse(text).ok()?;
    let safe = match url.scheme() {
        "https" => url.host().is_some(),
        "http" => is_loopback(&url),
        _ => false,
    };
    (safe && url.username().is_empty() && url.password().is_none()).then_some(url)
}

/// The URL of an issuer or of the endpoint, as tokens spell it.
fn named_url(text: &str, setting: &'static str) -> Result<Url, StartError> {
    let url = safe_url(text).filter(|url| url.query().is_none() && url.fragment().is_none());
    url.ok_or(StartError::Url(setting))
}

/// True if the setting `mcp-issuer` takes a text, and tokens may spell an issuer so: the parser of URLs drops spaces and line breaks.
#[must_use]
pub fn is_issuer(text: &str) -> bool {
    named_url(text, "mcp-issuer").is_ok() && !text.contains(|c: char| c.is_whitespace() || c.is_control())
}

/// Where keys may be fetched: on loopback by plain http only when the issuer itself is there.
pub(crate) fn key_url(text: &str, issuer: &Url) -> Result<Url, StartError> {
    let url = safe_url(text).filter(|url| url.scheme() == "https" || is_loopback(issuer));
    url.ok_or(StartError::Url("mcp-jwks-url"))
}

fn is_loopback(url: &Url) -> bool {
    match url.host() {
        Some(Host::Ipv4(ip)) => ip.is_loopback(),
        Some(Host::Ipv6(ip)) => ip.is_loopback(),
        Some(Host::Domain(name)) => name == "localhost",
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn settings(issuer: Option<&str>, resource: Option<&str>, jwks: Option<&str>, clients: &[&str]) -> Settings {
        Settings {
            mcp_issuer: issuer.map(str::to_owned),
            mcp_resource: resource.map(str::to_owned),
            mcp_jwks_url: jwks.map(str::to_owned),
            mcp_clients: clients.iter().map(|client| (*client).to_owned()).collect(),
            mcp_rate_per_minute: 60,
        }
    }

    const ID: Option<&str> = Some("https://id.example.com");
    const US: Option<&str> = Some("https://mail.example.com/mcp");

    #[rstest]
    #[case::off(settings(None, None, None, &[]), Ok(false))]
    #[case::on(settings(ID, US, None, &["pilot"]), Ok(true))]
    #[case::no_issuer(settings(None, US, None, &[]), Err(()))]
    #[case::no_resource(settings(ID, None, None, &["pilot"]), Err(()))]
    #[case::no_clients(settings(ID, US, None, &[" "]), Err(()))]
    #[case::plain_issuer(settings(Some("http://id.example.com"), US, None, &["pilot"]), Err(()))]
    #[case::loopback_issuer(settings(Some("http://127.0.0.1:9000"), US, None, &["pilot"]), Ok(true))]
    #[case::plain_resource(settings(ID, Some("http://mail.example.com/mcp"), None, &["pilot"]), Err(()))]
    #[case::plain_keys(settings(ID, US, Some("http://id.example.com/keys"), &["pilot"]), Err(()))]
    #[case::loopback_keys_of_a_far_issuer(settings(ID, US, Some("http://127.0.0.1/keys"), &["pilot"]), Err(()))]
    #[case::keys_elsewhere(settings(ID, US, Some("https://keys.example.com/a?b=c"), &["pilot"]), Ok(true))]
    #[case::with_a_password(settings(Some("https://a:b@id.example.com"), US, None, &["pilot"]), Err(()))]
    #[case::a_file(settings(Some("file:///etc/passwd"), US, None, &["pilot"]), Err(()))]
    fn the_endpoint_is_off_or_complete_and_safe(#[case] settings: Settings, #[case] on: Result<bool, ()>) {
        assert_eq!(settings.terms().map(|terms| terms.is_some()).map_err(drop), on);
    }

    #[rstest]
    #[case("https://mail.example.com/mcp", "https://mail.example.com/.well-known/oauth-protected-resource/mcp")]
    #[case("https://mail.example.com/a/mcp", "https://mail.example.com/.well-known/oauth-protected-resource")]
    fn the_metadata_is_found_from_the_public_url(#[case] resource: &str, #[case] metadata: &str) {
        let terms = settings(ID, Some(resource), None, &["pilot"]).terms().unwrap().unwrap();
        assert_eq!(terms.metadata_url(), metadata);
    }
}
