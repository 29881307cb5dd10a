//! Domains nobody can own as a tenant: freemail providers, matched exactly and by registrable domain.

/// Freemail and disposable providers, as registrable domains in A-label form, sorted.
const FREEMAIL: &str = "\
    126.com 163.com aim.com alice.it aliyun.com aol.com arcor.de att.net bellsouth.net bigpond.com bluewin.ch bol.com.br \
    btinternet.com charter.net comcast.net cox.net daum.net duck.com earthlink.net email.com fastmail.com fastmail.fm \
    foxmail.com free.fr freenet.de freemail.hu frontier.com gmail.com gmx.at gmx.ch gmx.com gmx.de gmx.net googlemail.com \
    guerrillamail.com hanmail.net hey.com hotmail.be hotmail.co.uk hotmail.com hotmail.de hotmail.es hotmail.fr hotmail.it \
    hushmail.com icloud.com inbox.com inbox.lv interia.pl juno.com kpnmail.nl laposte.net libero.it live.ca live.co.uk \
    live.com live.de live.fr live.nl mac.com mail.com mail.de mail.ru mailbox.org mailinator.com me.com msn.com naver.com \
    netscape.net o2.pl onet.pl orange.fr outlook.com outlook.de outlook.es outlook.fr outlook.it pm.me posteo.de proton.me \
    protonmail.ch protonmail.com qq.com rediffmail.com rocketmail.com rogers.com sbcglobal.net seznam.cz sfr.fr shaw.ca \
    sina.com sky.com sohu.com t-online.de talktalk.net telenet.be terra.com.br tiscali.it tuta.com tutanota.com uol.com.br \
    verizon.net virgilio.it virginmedia.com wanadoo.fr web.de windstream.net wp.pl yahoo.ca yahoo.co.in yahoo.co.jp \
    yahoo.co.uk yahoo.com yahoo.com.br yahoo.de yahoo.es yahoo.fr yahoo.it yandex.com yandex.ru yeah.net ymail.com \
    yopmail.com zoho.com";

/// The registrable domain (public suffix plus one label), or `None` when the domain is itself a public suffix.
#[must_use]
pub fn registrable(domain: &str) -> Option<&str> {
    psl::domain_str(domain)
}

/// Whether a canonical domain belongs to a freemail provider, itself or as a subdomain.
#[must_use]
pub fn is_freemail(domain: &str) -> bool {
    let hit = |name: &str| FREEMAIL.split(' ').any(|known| known == name);
    hit(domain) || registrable(domain).is_some_and(hit)
}

/// Whether a canonical domain is one of the platform's own, or below it.
#[must_use]
pub fn is_platform(domain: &str, platform_domains: &[String]) -> bool {
    platform_domains.iter().any(|platform| {
        domain == platform || domain.strip_suffix(platform.as_str()).is_some_and(|left| left.ends_with('.'))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("gmail.com", true)]
    #[case("mail.gmail.com", true)]
    #[case("notgmail.com", false)]
    #[case("yahoo.co.uk", true)]
    #[case("acme.co.uk", false)]
    fn freemail_is_matched_by_registrable_domain(#[case] domain: &str, #[case] freemail: bool) {
        assert_eq!(is_freemail(domain), freemail);
    }

    #[test]
    fn a_platform_domain_covers_its_subdomains_and_no_lookalike() {
        let own = vec!["postrider.dev".to_owned()];
        assert!(is_platform("postrider.dev", &own) && is_platform("a.b.postrider.dev", &own));
        assert!(!is_platform("xpostrider.dev", &own));
    }

    #[test]
    fn a_public_suffix_has_no_registrable_domain() {
        assert_eq!(registrable("co.uk"), None);
        assert_eq!(registrable("a.b.co.uk"), Some("b.co.uk"));
    }
}
