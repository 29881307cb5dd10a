//! Cleans texts that callers wrote, such as a campaign's name, before an assistant reads them.

const NAME_MAX_CHARS: usize = 200;
const IN_PLACE_OF_AN_ADDRESS: &str = "[address]";

/// A name without control characters and without anything that looks like an address, cut to a length.
pub(crate) fn name(text: &str) -> String {
    let clean: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(NAME_MAX_CHARS).collect();
    let words = clean.split(' ').map(|word| if looks_like_an_address(word) { IN_PLACE_OF_AN_ADDRESS } else { word });
    words.collect::<Vec<_>>().join(" ")
}

fn looks_like_an_address(word: &str) -> bool {
    // The small and the full-width sign, and the sign as URLs write it.
    word.contains(['@', '\u{fe6b}', '\u{ff20}']) || word.to_ascii_lowercase().contains("%40")
}

/// True if the text has no control characters but line breaks and tabs.
pub(crate) fn is_plain_text(text: &str) -> bool {
    text.chars().all(|c| !c.is_control() || matches!(c, '\n' | '\r' | '\t'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("Spring news", "Spring news")]
    #[case("For ann@example.com only", "For [address] only")]
    #[case("<ann@example.com>, bob＠example.com", "[address] [address]")]
    #[case("mailto:ann%40example.com", "[address]")]
    #[case("a\u{0}b\nann@example.com", "a b [address]")]
    fn a_name_carries_no_address(#[case] text: &str, #[case] shown: &str) {
        assert_eq!(name(text), shown);
    }

    #[test]
    fn a_name_is_cut() {
        assert_eq!(name(&"x".repeat(500)).chars().count(), NAME_MAX_CHARS);
    }
}
