//! The hosts that a connection's mail and credentials may be sent to: the provider's own, over https.

use url::Url;

use super::{ConnectionSettings, ProviderKind};

/// Hosts that an operator allows beside the providers' own, as `host:port`; these may also speak plain http. For test servers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HostPolicy {
    allowed: Vec<String>,
}

impl HostPolicy {
    /// A policy that also allows these hosts, each as `host:port`.
    #[must_use]
    pub fn allowing(hosts: &[String]) -> Self {
        Self { allowed: hosts.iter().map(|host| host.trim().to_ascii_lowercase()).collect() }
    }

    /// True if a provider of this kind may be reached at this URL.
    #[must_use]
    pub fn permits(&self, kind: ProviderKind, url: &Url) -> bool {
        let Some(host) = url.host_str().map(str::to_ascii_lowercase) else { return false };
        let has_credentials = !url.username().is_empty() || url.password().is_some();
        if has_credentials || url.query().is_some() || url.fragment().is_some() {
            return false;
        }
        let port = url.port_or_known_default().unwrap_or(0);
        if matches!(url.scheme(), "http" | "https") && self.allowed.contains(&format!("{host}:{port}")) {
            return true;
        }
        url.scheme() == "https" && url.port().is_none() && matches!(url.path(), "" | "/") && is_own(kind, &host)
    }
}

/// The hosts of a provider's API, each with its region, if it has any; the first is the default. Those of SES are made of their region.
fn hosts(kind: ProviderKind) -> &'static [(&'static str, &'static str)] {
    match kind {
        ProviderKind::Smtp | ProviderKind::Ses => &[],
        ProviderKind::Postmark => &[("", "api.postmarkapp.com")],
        ProviderKind::Sendgrid => &[("us", "api.sendgrid.com"), ("eu", "api.eu.sendgrid.com")],
        ProviderKind::Mailgun => &[("us", "api.mailgun.net"), ("eu", "api.eu.mailgun.net")],
        ProviderKind::Resend => &[("", "api.resend.com")],
    }
}

fn is_own(kind: ProviderKind, host: &str) -> bool {
    if kind != ProviderKind::Ses {
        return hosts(kind).iter().any(|(_, own)| *own == host);
    }
    let region = host
        .strip_prefix("email.")
        .and_then(|rest| rest.strip_suffix(".amazonaws.com").or_else(|| rest.strip_suffix(".amazonaws.com.cn")));
    region.is_some_and(is_region)
}

/// True for an AWS region such as `eu-central-1`. The region becomes part of a host name and of a signature.
pub(super) fn is_region(text: &str) -> bool {
    (5..=32).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
        && text.contains('-')
        && !text.starts_with('-')
        && !text.ends_with('-')
}

/// The URL of a provider's API for these settings. `None`: the kind has no API, or the region is not one of its regions.
pub(super) fn own_url(kind: ProviderKind, settings: &ConnectionSettings) -> Option<Url> {
    let host = match (kind, settings.region.as_deref()) {
        (ProviderKind::Ses, Some(region)) if is_region(region) => {
            let suffix = if region.starts_with("cn-") { "amazonaws.com.cn" } else { "amazonaws.com" };
            format!("email.{region}.{suffix}")
        }
        (_, None) => hosts(kind).first()?.1.to_owned(),
        (_, Some(region)) => hosts(kind).iter().find(|(of, _)| *of == region)?.1.to_owned(),
    };
    Url::parse(&format!("https://{host}/")).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case(ProviderKind::Postmark, "https://api.postmarkapp.com/", true)]
    #[case(ProviderKind::Ses, "https://email.eu-central-1.amazonaws.com/", true)]
    #[case(ProviderKind::Ses, "https://email.cn-north-1.amazonaws.com.cn/", true)]
    #[case::clear(ProviderKind::Postmark, "http://api.postmarkapp.com/", false)]
    #[case::port(ProviderKind::Postmark, "https://api.postmarkapp.com:8443/", false)]
    #[case::other(ProviderKind::Postmark, "https://api.resend.com/", false)]
    #[case::suffix(ProviderKind::Postmark, "https://api.postmarkapp.com.evil.example/", false)]
    #[case::user(ProviderKind::Postmark, "https://a:b@api.postmarkapp.com/", false)]
    #[case::region(ProviderKind::Ses, "https://email.evil.example.amazonaws.com/", false)]
    #[case::bucket(ProviderKind::Ses, "https://bucket.s3.amazonaws.com/", false)]
    #[case::local(ProviderKind::Resend, "http://127.0.0.1:8099/", false)]
    fn only_the_providers_own_hosts_are_permitted(
        #[case] kind: ProviderKind,
        #[case] url: &str,
        #[case] allowed: bool,
    ) {
        assert_eq!(HostPolicy::default().permits(kind, &Url::parse(url).unwrap()), allowed);
    }

    #[test]
    fn a_stand_in_must_be_named_with_its_port() {
        let guard = HostPolicy::allowing(&["127.0.0.1:8099".to_owned()]);
        let may = |url: &str| guard.permits(ProviderKind::Resend, &Url::parse(url).unwrap());
        assert!(may("http://127.0.0.1:8099/"));
        assert!(!may("http://127.0.0.1:8098/") && !may("http://127.0.0.2:8099/"));
    }
}
