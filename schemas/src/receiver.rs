//! Which operator takes a domain's mail: what one operator takes is one receiver, under however many names.

use std::sync::Arc;

/// The family of every receiver that has no family of its own.
pub const OTHER: &str = "other";

/// The large families, by the domains they take mail for. Known by their published names, not by a look at the MX: it must hold
/// through a relay, too, which is asked for no MX at all.
const FAMILIES: &[(&str, &[&str])] = &[
    ("apple", &["icloud.com", "mac.com", "me.com"]),
    ("gmail", &["gmail.com", "googlemail.com"]),
    ("gmx", &["gmx.*", "mail.com", "web.de"]),
    ("mail_ru", &["bk.ru", "inbox.ru", "internet.ru", "list.ru", "mail.ru"]),
    ("microsoft", &["hotmail.*", "live.*", "msn.com", "outlook.*", "passport.com", "windowslive.com"]),
    ("netease", &["126.com", "163.com", "yeah.net"]),
    ("orange", &["orange.fr", "wanadoo.fr"]),
    ("proton", &["pm.me", "proton.me", "protonmail.ch", "protonmail.com"]),
    ("qq", &["foxmail.com", "qq.com"]),
    ("yahoo", &["aim.com", "aol.*", "rocketmail.com", "yahoo.*", "ymail.com"]),
    ("yandex", &["ya.ru", "yandex.*"]),
];

/// The operator that receives a domain's mail.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Receiver {
    /// The family's name, or the domain itself.
    pub name: Arc<str>,
    /// The family, for metrics: a bounded set.
    pub family: &'static str,
}

impl Receiver {
    /// The receiver of a domain in canonical form.
    #[must_use]
    pub fn of(domain: &str) -> Self {
        match family(domain) {
            Some(family) => Self { name: Arc::from(family), family },
            None => Self { name: Arc::from(domain), family: OTHER },
        }
    }

    /// The receiver with this name, as the ledger keeps it.
    #[must_use]
    pub fn named(name: &str) -> Self {
        Self { name: Arc::from(name), family: families().find(|family| *family == name).unwrap_or(OTHER) }
    }
}

/// Every family's name, and that of the others.
pub fn families() -> impl Iterator<Item = &'static str> {
    FAMILIES.iter().map(|(family, _)| *family).chain([OTHER])
}

fn family(domain: &str) -> Option<&'static str> {
    FAMILIES.iter().find(|(_, domains)| domains.iter().any(|known| fits(known, domain))).map(|(family, _)| *family)
}

/// `name.*` is the name in any country: one or two short labels follow (`.fr`, `.com`, `.co.uk`).
fn fits(known: &str, domain: &str) -> bool {
    let Some(name) = known.strip_suffix(".*") else { return known == domain };
    let Some(country) = domain.strip_prefix(name).and_then(|rest| rest.strip_prefix('.')) else { return false };
    country.split('.').count() <= 2 && country.split('.').all(|label| (2..=3).contains(&label.len()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("gmail.com", "gmail", "gmail")]
    #[case("googlemail.com", "gmail", "gmail")]
    #[case("hotmail.co.uk", "microsoft", "microsoft")]
    #[case("outlook.com", "microsoft", "microsoft")]
    #[case("live.nl", "microsoft", "microsoft")]
    #[case("live.example", "live.example", OTHER)]
    #[case("yahoo.com.br", "yahoo", "yahoo")]
    #[case("notyahoo.com", "notyahoo.com", OTHER)]
    #[case("mail.yahoo.com", "mail.yahoo.com", OTHER)]
    #[case("example.com", "example.com", OTHER)]
    fn what_one_operator_takes_is_one_receiver(#[case] domain: &str, #[case] name: &str, #[case] family: &str) {
        let receiver = Receiver::of(domain);
        assert_eq!((&*receiver.name, receiver.family), (name, family));
        assert_eq!(Receiver::named(&receiver.name), receiver);
    }
}
