//! The rules for a customer's URL before anything is resolved. They are the same when it is stored and at each request.

use std::net::IpAddr;

use ipnet::IpNet;
use schemas::freemail;
use thiserror::Error;
use url::{Host, Url};

use super::address;

/// The longest URL, in bytes.
pub const URL_MAX_BYTES: usize = 2_048;
/// Ports below this one belong to other services, such as mail servers, and are refused.
const FIRST_FREE_PORT: u16 = 1_024;
const HTTPS_PORT: u16 = 443;
/// Names that are always local (RFC 6761, RFC 6762, RFC 8375, RFC 9476).
const LOCAL_NAMES: &[&str] =
    &["localhost", "local", "localdomain", "internal", "intranet", "lan", "home", "corp", "home.arpa", "onion", "alt"];

/// Why a URL is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum TargetFault {
    /// Neither https nor, where that is allowed, http.
    #[error("must be an https address")]
    NotHttps,
    /// No URL, or one without a host.
    #[error("is not an absolute URL")]
    Malformed,
    /// Longer than [`URL_MAX_BYTES`].
    #[error("is longer than 2048 bytes")]
    TooLong,
    /// `https://user:password@…`: proxies would log it.
    #[error("must not carry a user name or password")]
    Credentials,
    /// A fragment never reaches the server.
    #[error("must not have a fragment")]
    Fragment,
    /// A port of another service.
    #[error("must use port 443 or one from 1024 on")]
    Port,
    /// A literal address that is not on the public internet, or a name that never is.
    #[error("must be a host on the public internet")]
    NotPublic,
    /// One of the platform's own hosts.
    #[error("must not be the platform's own host")]
    OwnHost,
}

impl TargetFault {
    /// The error code in a 400 answer.
    #[must_use]
    pub fn code(self) -> &'static str {
        match self {
            Self::NotHttps => "not_https",
            Self::Malformed => "invalid",
            Self::TooLong => "too_long",
            Self::Credentials => "credentials_not_allowed",
            Self::Fragment => "fragment_not_allowed",
            Self::Port => "port_not_allowed",
            Self::NotPublic | Self::OwnHost => "address_not_allowed",
        }
    }
}

/// The operator's rules for customers' URLs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TargetRules {
    /// Private networks that are allowed, also by plain http.
    pub allowed: Vec<IpNet>,
    /// The platform's own domains, with all their subdomains.
    pub own_domains: Vec<String>,
}

impl TargetRules {
    /// Parses a URL and checks it. What a host name resolves to is checked when it is dialled.
    pub fn parse(&self, text: &str) -> Result<Url, TargetFault> {
        if text.len() > URL_MAX_BYTES {
            return Err(TargetFault::TooLong);
        }
        let url = Url::parse(text).map_err(|_| TargetFault::Malformed)?;
        self.check(&url)?;
        // The URL parser accepts more than a request line does.
        url.as_str().parse::<http::Uri>().map_err(|_| TargetFault::Malformed)?;
        Ok(url)
    }

    /// Checks a URL.
    pub fn check(&self, url: &Url) -> Result<(), TargetFault> {
        if url.as_str().len() > URL_MAX_BYTES {
            return Err(TargetFault::TooLong);
        }
        let is_plain = match url.scheme() {
            "https" => false,
            "http" if !self.allowed.is_empty() => true,
            _ => return Err(TargetFault::NotHttps),
        };
        if !url.username().is_empty() || url.password().is_some() {
            return Err(TargetFault::Credentials);
        }
        if url.fragment().is_some() {
            return Err(TargetFault::Fragment);
        }
        // The parser has normalised `0x7f.1`, `017700000001` and `2130706433` to IPv4 addresses.
        match url.host().ok_or(TargetFault::Malformed)? {
            Host::Domain(name) => self.check_name(name)?,
            Host::Ipv4(address) => self.check_literal(IpAddr::V4(address), is_plain)?,
            Host::Ipv6(address) => self.check_literal(IpAddr::V6(address), is_plain)?,
        }
        match url.port_or_known_default() {
            Some(HTTPS_PORT | FIRST_FREE_PORT..) => Ok(()),
            Some(1..) if is_plain || !self.allowed.is_empty() => Ok(()),
            _ => Err(TargetFault::Port),
        }
    }

    fn check_name(&self, name: &str) -> Result<(), TargetFault> {
        let name = name.trim_end_matches('.').to_ascii_lowercase();
        if name.is_empty() {
            return Err(TargetFault::Malformed);
        }
        if freemail::is_platform(&name, &self.own_domains) {
            return Err(TargetFault::OwnHost);
        }
        let is_local = !name.contains('.')
            || LOCAL_NAMES.iter().any(|local| name.strip_suffix(local).is_some_and(|rest| rest.ends_with('.')));
        // Allowed private networks have such names; the connector decides.
        if is_local && self.allowed.is_empty() { Err(TargetFault::NotPublic) } else { Ok(()) }
    }

    fn check_literal(&self, address: IpAddr, is_plain: bool) -> Result<(), TargetFault> {
        match self.permits(address, is_plain) {
            true => Ok(()),
            false if is_plain && address::is_public(address) => Err(TargetFault::NotHttps),
            false => Err(TargetFault::NotPublic),
        }
    }

    /// Whether this very address may be dialled, and, if so, by plain http.
    #[must_use]
    pub fn permits(&self, address: IpAddr, is_plain: bool) -> bool {
        address::is_in(&self.allowed, address) || (!is_plain && address::is_public(address))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn rules(allowed: &[&str]) -> TargetRules {
        TargetRules {
            allowed: allowed.iter().map(|text| text.parse().unwrap()).collect(),
            own_domains: vec!["postrider.dev".to_owned()],
        }
    }

    #[rstest]
    #[case("https://example.com/hook?a=b", None)]
    #[case("https://example.com:8443/", None)]
    #[case("https://bücher.example/", None)]
    #[case("https://example.com./hook", None)]
    #[case("https://[2606:4700:4700::1111]/", None)]
    #[case("http://example.com/", Some(TargetFault::NotHttps))]
    #[case("ftp://example.com/", Some(TargetFault::NotHttps))]
    #[case("file:///etc/passwd", Some(TargetFault::NotHttps))]
    #[case("gopher://127.0.0.1:6379/_INFO", Some(TargetFault::NotHttps))]
    #[case("example.com/hook", Some(TargetFault::Malformed))]
    #[case("https://", Some(TargetFault::Malformed))]
    #[case("https://u@example.com/", Some(TargetFault::Credentials))]
    #[case("https://example.com@127.0.0.1/", Some(TargetFault::Credentials))]
    #[case("https://example.com/#x", Some(TargetFault::Fragment))]
    #[case("https://example.com:25/", Some(TargetFault::Port))]
    #[case("https://example.com:22/", Some(TargetFault::Port))]
    #[case("https://example.com:0/", Some(TargetFault::Port))]
    #[case("https://localhost/", Some(TargetFault::NotPublic))]
    #[case("https://LOCALHOST./", Some(TargetFault::NotPublic))]
    #[case("https://a.localhost/", Some(TargetFault::NotPublic))]
    #[case("https://metadata.google.internal/", Some(TargetFault::NotPublic))]
    #[case("https://printer.local/", Some(TargetFault::NotPublic))]
    #[case("https://intranet/", Some(TargetFault::NotPublic))]
    #[case("https://127.0.0.1/", Some(TargetFault::NotPublic))]
    #[case("https://127.0.0.1./", Some(TargetFault::NotPublic))]
    #[case("https://127.1/", Some(TargetFault::NotPublic))]
    #[case("https://0x7f.1/", Some(TargetFault::NotPublic))]
    #[case("https://0x7f000001/", Some(TargetFault::NotPublic))]
    #[case("https://017700000001/", Some(TargetFault::NotPublic))]
    #[case("https://0177.0.0.01/", Some(TargetFault::NotPublic))]
    #[case("https://2130706433/", Some(TargetFault::NotPublic))]
    #[case("https://①②⑦.⓪.⓪.①/", Some(TargetFault::NotPublic))]
    #[case("https://%31%32%37.0.0.1/", Some(TargetFault::NotPublic))]
    #[case("https://0/", Some(TargetFault::NotPublic))]
    #[case("https://169.254.169.254/latest/meta-data/", Some(TargetFault::NotPublic))]
    #[case("https://[::1]/", Some(TargetFault::NotPublic))]
    #[case("https://[::]/", Some(TargetFault::NotPublic))]
    #[case("https://[::ffff:127.0.0.1]/", Some(TargetFault::NotPublic))]
    #[case("https://[0:0:0:0:0:ffff:7f00:1]/", Some(TargetFault::NotPublic))]
    #[case("https://[64:ff9b::169.254.169.254]/", Some(TargetFault::NotPublic))]
    #[case("https://[2002:7f00:1::]/", Some(TargetFault::NotPublic))]
    #[case("https://[fd00:ec2::254]/", Some(TargetFault::NotPublic))]
    #[case("https://[fe80::1%25eth0]/", Some(TargetFault::Malformed))]
    #[case("https://postrider.dev/v1/webhooks", Some(TargetFault::OwnHost))]
    #[case("https://API.Postrider.dev./", Some(TargetFault::OwnHost))]
    fn an_address_is_https_public_and_plain(#[case] text: &str, #[case] fault: Option<TargetFault>) {
        assert_eq!(rules(&[]).parse(text).err(), fault, "{text}");
    }

    #[rstest]
    #[case("http://127.0.0.1:9000/", None)]
    #[case("http://127.0.0.1/", None)]
    #[case("http://receiver:8080/", None)]
    #[case("https://localhost:8443/", None)]
    #[case("https://127.0.0.1:8443/", None)]
    #[case("https://8.8.8.8/", None)]
    #[case("http://8.8.8.8/", Some(TargetFault::NotHttps))]
    #[case("http://10.0.0.1/", Some(TargetFault::NotPublic))]
    #[case("https://10.0.0.1/", Some(TargetFault::NotPublic))]
    #[case("http://postrider.dev/", Some(TargetFault::OwnHost))]
    fn allowed_networks_may_be_private_and_plain(#[case] text: &str, #[case] fault: Option<TargetFault>) {
        assert_eq!(rules(&["127.0.0.0/8"]).parse(text).err(), fault, "{text}");
    }

    #[test]
    fn a_url_without_end_is_refused() {
        let long = format!("https://example.com/{}", "a".repeat(URL_MAX_BYTES));
        assert_eq!(rules(&[]).parse(&long), Err(TargetFault::TooLong));
    }
}
