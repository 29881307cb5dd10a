//! Decoding of HTML character references, for link targets and for the text part.

use std::collections::HashMap;
use std::sync::LazyLock;

/// Names of U+00A0 to U+00FF, in order (HTML 4 §24.2).
const LATIN: [&str; 96] = [
    "nbsp", "iexcl", "cent", "pound", "curren", "yen", "brvbar", "sect", "uml", "copy", "ordf", "laquo", "not", "shy",
    "reg", "macr", "deg", "plusmn", "sup2", "sup3", "acute", "micro", "para", "middot", "cedil", "sup1", "ordm",
    "raquo", "frac14", "frac12", "frac34", "iquest", "Agrave", "Aacute", "Acirc", "Atilde", "Auml", "Aring", "AElig",
    "Ccedil", "Egrave", "Eacute", "Ecirc", "Euml", "Igrave", "Iacute", "Icirc", "Iuml", "ETH", "Ntilde", "Ograve",
    "Oacute", "Ocirc", "Otilde", "Ouml", "times", "Oslash", "Ugrave", "Uacute", "Ucirc", "Uuml", "Yacute", "THORN",
    "szlig", "agrave", "aacute", "acirc", "atilde", "auml", "aring", "aelig", "ccedil", "egrave", "eacute", "ecirc",
    "euml", "igrave", "iacute", "icirc", "iuml", "eth", "ntilde", "ograve", "oacute", "ocirc", "otilde", "ouml",
    "divide", "oslash", "ugrave", "uacute", "ucirc", "uuml", "yacute", "thorn", "yuml",
];

/// The other names in use in mail.
const OTHERS: [(&str, char); 195] = [
    ("amp", '\u{26}'),
    ("lt", '\u{3c}'),
    ("gt", '\u{3e}'),
    ("quot", '\u{22}'),
    ("apos", '\u{27}'),
    ("OElig", '\u{152}'),
    ("oelig", '\u{153}'),
    ("Scaron", '\u{160}'),
    ("scaron", '\u{161}'),
    ("Yuml", '\u{178}'),
    ("fnof", '\u{192}'),
    ("circ", '\u{2c6}'),
    ("tilde", '\u{2dc}'),
    ("ensp", '\u{2002}'),
    ("emsp", '\u{2003}'),
    ("thinsp", '\u{2009}'),
    ("zwnj", '\u{200c}'),
    ("zwj", '\u{200d}'),
    ("lrm", '\u{200e}'),
    ("rlm", '\u{200f}'),
    ("ndash", '\u{2013}'),
    ("mdash", '\u{2014}'),
    ("horbar", '\u{2015}'),
    ("lsquo", '\u{2018}'),
    ("rsquo", '\u{2019}'),
    ("sbquo", '\u{201a}'),
    ("ldquo", '\u{201c}'),
    ("rdquo", '\u{201d}'),
    ("bdquo", '\u{201e}'),
    ("dagger", '\u{2020}'),
    ("Dagger", '\u{2021}'),
    ("bull", '\u{2022}'),
    ("hellip", '\u{2026}'),
    ("permil", '\u{2030}'),
    ("prime", '\u{2032}'),
    ("Prime", '\u{2033}'),
    ("lsaquo", '\u{2039}'),
    ("rsaquo", '\u{203a}'),
    ("oline", '\u{203e}'),
    ("frasl", '\u{2044}'),
    ("euro", '\u{20ac}'),
    ("image", '\u{2111}'),
    ("weierp", '\u{2118}'),
    ("real", '\u{211c}'),
    ("trade", '\u{2122}'),
    ("alefsym", '\u{2135}'),
    ("larr", '\u{2190}'),
    ("uarr", '\u{2191}'),
    ("rarr", '\u{2192}'),
    ("darr", '\u{2193}'),
    ("harr", '\u{2194}'),
    ("crarr", '\u{21b5}'),
    ("lArr", '\u{21d0}'),
    ("uArr", '\u{21d1}'),
    ("rArr", '\u{21d2}'),
    ("dArr", '\u{21d3}'),
    ("hArr", '\u{21d4}'),
    ("forall", '\u{2200}'),
    ("part", '\u{2202}'),
    ("exist", '\u{2203}'),
    ("empty", '\u{2205}'),
    ("nabla", '\u{2207}'),
    ("isin", '\u{2208}'),
    ("notin", '\u{2209}'),
    ("ni", '\u{220b}'),
    ("prod", '\u{220f}'),
    ("sum", '\u{2211}'),
    ("minus", '\u{2212}'),
    ("lowast", '\u{2217}'),
    ("radic", '\u{221a}'),
    ("prop", '\u{221d}'),
    ("infin", '\u{221e}'),
    ("ang", '\u{2220}'),
    ("and", '\u{2227}'),
    ("or", '\u{2228}'),
    ("cap", '\u{2229}'),
    ("cup", '\u{222a}'),
    ("int", '\u{222b}'),
    ("there4", '\u{2234}'),
    ("sim", '\u{223c}'),
    ("cong", '\u{2245}'),
    ("asymp", '\u{2248}'),
    ("ne", '\u{2260}'),
    ("equiv", '\u{2261}'),
    ("le", '\u{2264}'),
    ("ge", '\u{2265}'),
    ("sub", '\u{2282}'),
    ("sup", '\u{2283}'),
    ("nsub", '\u{2284}'),
    ("sube", '\u{2286}'),
    ("supe", '\u{2287}'),
    ("oplus", '\u{2295}'),
    ("otimes", '\u{2297}'),
    ("perp", '\u{22a5}'),
    ("sdot", '\u{22c5}'),
    ("lceil", '\u{2308}'),
    ("rceil", '\u{2309}'),
    ("lfloor", '\u{230a}'),
    ("rfloor", '\u{230b}'),
    ("lang", '\u{27e8}'),
    ("rang", '\u{27e9}'),
    ("loz", '\u{25ca}'),
    ("spades", '\u{2660}'),
    ("clubs", '\u{2663}'),
    ("hearts", '\u{2665}'),
    ("diams", '\u{2666}'),
    ("Alpha", '\u{391}'),
    ("Beta", '\u{392}'),
    ("Gamma", '\u{393}'),
    ("Delta", '\u{394}'),
    ("Epsilon", '\u{395}'),
    ("Zeta", '\u{396}'),
    ("Eta", '\u{397}'),
    ("Theta", '\u{398}'),
    ("Iota", '\u{399}'),
    ("Kappa", '\u{39a}'),
    ("Lambda", '\u{39b}'),
    ("Mu", '\u{39c}'),
    ("Nu", '\u{39d}'),
    ("Xi", '\u{39e}'),
    ("Omicron", '\u{39f}'),
    ("Pi", '\u{3a0}'),
    ("Rho", '\u{3a1}'),
    ("Sigma", '\u{3a3}'),
    ("Tau", '\u{3a4}'),
    ("Upsilon", '\u{3a5}'),
    ("Phi", '\u{3a6}'),
    ("Chi", '\u{3a7}'),
    ("Psi", '\u{3a8}'),
    ("Omega", '\u{3a9}'),
    ("alpha", '\u{3b1}'),
    ("beta", '\u{3b2}'),
    ("gamma", '\u{3b3}'),
    ("delta", '\u{3b4}'),
    ("epsilon", '\u{3b5}'),
    ("zeta", '\u{3b6}'),
    ("eta", '\u{3b7}'),
    ("theta", '\u{3b8}'),
    ("iota", '\u{3b9}'),
    ("kappa", '\u{3ba}'),
    ("lambda", '\u{3bb}'),
    ("mu", '\u{3bc}'),
    ("nu", '\u{3bd}'),
    ("xi", '\u{3be}'),
    ("omicron", '\u{3bf}'),
    ("pi", '\u{3c0}'),
    ("rho", '\u{3c1}'),
    ("sigmaf", '\u{3c2}'),
    ("sigma", '\u{3c3}'),
    ("tau", '\u{3c4}'),
    ("upsilon", '\u{3c5}'),
    ("phi", '\u{3c6}'),
    ("chi", '\u{3c7}'),
    ("psi", '\u{3c8}'),
    ("omega", '\u{3c9}'),
    ("check", '\u{2713}'),
    ("cross", '\u{2717}'),
    ("star", '\u{2606}'),
    ("starf", '\u{2605}'),
    ("phone", '\u{260e}'),
    ("hyphen", '\u{2010}'),
    ("numsp", '\u{2007}'),
    ("puncsp", '\u{2008}'),
    ("hairsp", '\u{200a}'),
    ("num", '\u{23}'),
    ("dollar", '\u{24}'),
    ("percnt", '\u{25}'),
    ("excl", '\u{21}'),
    ("quest", '\u{3f}'),
    ("commat", '\u{40}'),
    ("lpar", '\u{28}'),
    ("rpar", '\u{29}'),
    ("plus", '\u{2b}'),
    ("comma", '\u{2c}'),
    ("period", '\u{2e}'),
    ("colon", '\u{3a}'),
    ("semi", '\u{3b}'),
    ("equals", '\u{3d}'),
    ("lsqb", '\u{5b}'),
    ("rsqb", '\u{5d}'),
    ("lbrack", '\u{5b}'),
    ("rbrack", '\u{5d}'),
    ("lowbar", '\u{5f}'),
    ("grave", '\u{60}'),
    ("lcub", '\u{7b}'),
    ("rcub", '\u{7d}'),
    ("lbrace", '\u{7b}'),
    ("rbrace", '\u{7d}'),
    ("verbar", '\u{7c}'),
    ("vert", '\u{7c}'),
    ("bsol", '\u{5c}'),
    ("sol", '\u{2f}'),
    ("ast", '\u{2a}'),
    ("Tab", '\u{9}'),
    ("NewLine", '\u{a}'),
];

/// Text with its character references resolved. What is no reference stays as it is: `?a=1&copy=2` keeps its
/// parameter, because a named reference must end with `;` here.
pub(super) fn decode(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find('&') {
        let (before, from) = rest.split_at(start);
        out.push_str(before);
        match reference(from) {
            Some((character, length)) => {
                out.push(character);
                rest = from.get(length..).unwrap_or_default();
            }
            None => {
                out.push('&');
                rest = from.get(1..).unwrap_or_default();
            }
        }
    }
    out.push_str(rest);
    out
}

/// The character a reference at the start of the text stands for, and how long the reference is.
fn reference(text: &str) -> Option<(char, usize)> {
    // The longest name here has 8 letters, the longest number 7 digits.
    let end = text.bytes().take(12).position(|byte| byte == b';')?;
    let name = text.get(1..end)?;
    let character = match name.strip_prefix('#') {
        Some(number) => numeric(number)?,
        None => named(name)?,
    };
    Some((character, end + 1))
}

fn numeric(number: &str) -> Option<char> {
    let code = match number.strip_prefix(['x', 'X']) {
        Some(hex) => u32::from_str_radix(hex, 16).ok()?,
        None => number.parse().ok()?,
    };
    match code {
        0 => Some(char::REPLACEMENT_CHARACTER),
        // Control characters have no place in mail.
        1..=8 | 11 | 12 | 14..=31 | 127..=159 => Some(' '),
        code => char::from_u32(code),
    }
}

/// All names that are known: a text may consist of nothing but references.
static NAMES: LazyLock<HashMap<&'static str, char>> = LazyLock::new(|| {
    let latin = LATIN.iter().zip('\u{A0}'..).map(|(name, character)| (*name, character));
    OTHERS.iter().copied().chain(latin).collect()
});

fn named(name: &str) -> Option<char> {
    NAMES.get(name).copied()
}
