//! Which language a recipient reads: what the browser asks for, then what the tenant knows, then English.

use http::{HeaderMap, header};

use super::texts::{ALL, PageTexts};

/// Languages of one header that are looked at.
const LANGUAGES_MAX: usize = 32;

/// The texts for a recipient. `locale` is the contact's, as `de-AT`.
pub(super) fn choose(headers: &HeaderMap, locale: Option<&str>) -> &'static PageTexts {
    let asked = headers.get(header::ACCEPT_LANGUAGE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let [english, ..] = ALL;
    preferred(asked, locale).or_else(|| locale.and_then(named)).unwrap_or(english)
}

/// The best of what a browser accepts (RFC 9110 §12.5.4): by weight, then in its order. `*` is every language not named: the
/// contact's own, if it is none of those that are refused.
fn preferred(header: &str, locale: Option<&str>) -> Option<&'static PageTexts> {
    let mut ranges: Vec<(&str, f32)> = header.split(',').take(LANGUAGES_MAX).filter_map(range).collect();
    // A stable sort: of equals, the first stays first.
    ranges.sort_by(|(_, a), (_, b)| b.total_cmp(a));
    let refused = |texts: &PageTexts| {
        ranges.iter().any(|(tag, weight)| *weight == 0.0 && named(tag).is_some_and(|named| named.lang == texts.lang))
    };
    ranges.iter().filter(|(_, weight)| *weight > 0.0).find_map(|(tag, _)| match *tag {
        "*" => locale.and_then(named).into_iter().chain(ALL).find(|texts| !refused(texts)),
        tag => named(tag),
    })
}

/// A language range with its weight; `None` for one that is malformed.
fn range(text: &str) -> Option<(&str, f32)> {
    let mut parts = text.split(';').map(str::trim);
    let tag = parts.next().filter(|tag| !tag.is_empty())?;
    let weight = match parts.find_map(|parameter| parameter.strip_prefix("q=").or_else(|| parameter.strip_prefix("Q=")))
    {
        Some(weight) => weight.trim().parse().ok().filter(|weight| (0.0..=1.0).contains(weight))?,
        None => 1.0,
    };
    Some((tag, weight))
}

/// The texts of a language: `de`, `de-CH` and `de_AT` are all German.
fn named(tag: &str) -> Option<&'static PageTexts> {
    let primary = tag.split(['-', '_']).next()?;
    ALL.into_iter().find(|texts| texts.lang.eq_ignore_ascii_case(primary))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case::nothing_asked("", None, "en")]
    #[case::nothing_asked_but_known("", Some("fr-CA"), "fr")]
    #[case::plain("de", None, "de")]
    #[case::with_region("de-CH, en;q=0.5", None, "de")]
    #[case::the_browser_knows_better_than_the_tenant("es", Some("de"), "es")]
    #[case::by_weight("en;q=0.3, fr;q=0.9, de;q=0.7", None, "fr")]
    #[case::of_equals_the_first("es, fr", None, "es")]
    #[case::unknown_ones_are_passed_over("ja, zh-CN;q=0.9, es;q=0.1", None, "es")]
    #[case::none_of_ours_but_known("ja, ko", Some("de_AT"), "de")]
    #[case::none_of_ours("ja, ko", Some("pt"), "en")]
    #[case::refused("fr;q=0, *", Some("fr"), "en")]
    #[case::anything("*", Some("es"), "es")]
    #[case::refused_only("de;q=0", None, "en")]
    #[case::odd_weights("de;q=7, fr;q=x, es;Q=0.2", None, "es")]
    #[case::capitals("DE-de", None, "de")]
    #[case::nonsense(";;,,;q=,=", None, "en")]
    fn the_language_is_the_best_one_we_have(
        #[case] header: &str,
        #[case] locale: Option<&str>,
        #[case] expected: &str,
    ) {
        let mut headers = HeaderMap::new();
        if !header.is_empty() {
            headers.insert(header::ACCEPT_LANGUAGE, header.parse().unwrap());
        }
        assert_eq!(choose(&headers, locale).lang, expected);
    }
}
