//! Commands (RFC 5321 §4.1.1, RFC 2033, RFC 1870, RFC 3030, RFC 4954, RFC 6152, RFC 6531).

/// The longest address (RFC 5321 §4.5.3.1.3).
const ADDRESS_MAX: usize = 254;

/// A command line, taken apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SmtpCommand<'a> {
    Helo,
    Ehlo,
    Lhlo,
    Mail {
        /// Empty for bounces.
        sender: &'a str,
        /// As declared by SIZE; 0 if it was not.
        size: u64,
    },
    /// The address, with its domain.
    Rcpt(&'a str),
    Data,
    /// `None`: its size cannot be read, so the end of the octets that follow it is unknown.
    Bdat(Option<Chunk>),
    Auth {
        mechanism: &'a str,
        initial: Option<&'a str>,
    },
    StartTls,
    Rset,
    Noop,
    Quit,
    /// Whether an address exists is never answered (RFC 5321 §3.5.3).
    Vrfy,
}

/// What follows a BDAT command (RFC 3030 §2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Chunk {
    /// Octets.
    pub size: u64,
    /// The mail ends with it.
    pub is_last: bool,
}

/// Reads a command, or answers the reply to what is none.
pub(super) fn parse(line: &str) -> Result<SmtpCommand<'_>, &'static str> {
    let (verb, rest) = line.split_once(' ').unwrap_or((line, ""));
    let rest = rest.trim();
    let bare = |command| if rest.is_empty() { Ok(command) } else { Err("501 5.5.4 No parameters there") };
    let named = |command| if rest.is_empty() { Err("501 5.5.4 Who are you?") } else { Ok(command) };
    match verb.to_ascii_uppercase().as_str() {
        "MAIL" => mail(rest),
        "RCPT" => recipient(rest),
        "DATA" => bare(SmtpCommand::Data),
        "BDAT" => Ok(SmtpCommand::Bdat(chunk(rest))),
        "RSET" => bare(SmtpCommand::Rset),
        "EHLO" => named(SmtpCommand::Ehlo),
        "HELO" => named(SmtpCommand::Helo),
        "LHLO" => named(SmtpCommand::Lhlo),
        "STARTTLS" => bare(SmtpCommand::StartTls),
        "NOOP" => Ok(SmtpCommand::Noop),
        "QUIT" => bare(SmtpCommand::Quit),
        "AUTH" => {
            let mut words = rest.split_ascii_whitespace();
            let mechanism = words.next().ok_or("501 5.5.4 AUTH mechanism")?;
            Ok(SmtpCommand::Auth { mechanism, initial: words.next() })
        }
        "VRFY" | "EXPN" => Ok(SmtpCommand::Vrfy),
        _ => Err("500 5.5.2 Not a command"),
    }
}

fn chunk(rest: &str) -> Option<Chunk> {
    let (digits, last) = rest.split_once(' ').unwrap_or((rest, ""));
    let is_last = last.trim_start().eq_ignore_ascii_case("LAST");
    let is_sound = digits.bytes().all(|byte| byte.is_ascii_digit()) && (is_last || last.is_empty());
    Some(Chunk { size: digits.parse().ok().filter(|_| is_sound)?, is_last })
}

fn mail(rest: &str) -> Result<SmtpCommand<'_>, &'static str> {
    let (sender, parameters) = path(rest, "FROM:").ok_or("501 5.5.4 MAIL FROM:<address>")?;
    let mut size = 0;
    for parameter in parameters.split_ascii_whitespace() {
        let parameter = parameter.to_ascii_uppercase();
        match parameter.split_once('=').unwrap_or((parameter.as_str(), "")) {
            ("SIZE", octets) => size = octets.parse().map_err(|_| "501 5.5.4 SIZE is a number")?,
            ("BODY", "7BIT" | "8BITMIME") | ("SMTPUTF8", "") => {}
            _ => return Err("555 5.5.4 Not a parameter that was offered"),
        }
    }
    Ok(SmtpCommand::Mail { sender, size })
}

fn recipient(rest: &str) -> Result<SmtpCommand<'_>, &'static str> {
    match path(rest, "TO:") {
        Some((address, "")) if !address.is_empty() => Ok(SmtpCommand::Rcpt(address)),
        Some((_, parameters)) if !parameters.is_empty() => Err("555 5.5.4 Not a parameter that was offered"),
        _ => Err("501 5.5.4 RCPT TO:<address>"),
    }
}

/// `FROM:<address> parameters`; a source route in front of the address is passed over (RFC 5321 §4.1.1.3).
fn path<'a>(rest: &'a str, keyword: &str) -> Option<(&'a str, &'a str)> {
    let prefix = rest.get(..keyword.len())?;
    if !prefix.eq_ignore_ascii_case(keyword) {
        return None;
    }
    let (address, parameters) = bracketed(rest[keyword.len()..].trim_start().strip_prefix('<')?)?;
    let address = match address.split_once(':') {
        Some((route, address)) if route.starts_with('@') => address,
        _ => address,
    };
    let is_sound = address.len() <= ADDRESS_MAX
        && !address.chars().any(char::is_control)
        && (parameters.is_empty() || parameters.starts_with(' '));
    is_sound.then_some((address, parameters.trim()))
}

/// What stands before the closing `>`, and after it. A quoted local part may hold `>`, `<` and spaces.
fn bracketed(text: &str) -> Option<(&str, &str)> {
    let (mut is_quoted, mut is_escaped) = (false, false);
    for (at, character) in text.char_indices() {
        match character {
            _ if is_escaped => is_escaped = false,
            '\\' if is_quoted => is_escaped = true,
            '"' => is_quoted = !is_quoted,
            '>' if !is_quoted => return Some((&text[..at], &text[at + 1..])),
            '<' if !is_quoted => return None,
            other if !is_quoted && other.is_whitespace() => return None,
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rstest::rstest;

    #[rstest]
    #[case("EHLO mx.example", Ok(SmtpCommand::Ehlo))]
    #[case("mail from:<>", Ok(SmtpCommand::Mail { sender: "", size: 0 }))]
    #[case("MAIL FROM:<a@b.example> SIZE=1000 BODY=8BITMIME SMTPUTF8", Ok(SmtpCommand::Mail { sender: "a@b.example", size: 1000 }))]
    #[case("RCPT TO:<b-1@send.example>", Ok(SmtpCommand::Rcpt("b-1@send.example")))]
    #[case("RCPT TO: <a@b.c>", Ok(SmtpCommand::Rcpt("a@b.c")))]
    #[case("RCPT TO:<@relay.example:b-1@send.example>", Ok(SmtpCommand::Rcpt("b-1@send.example")))]
    #[case(r#"RCPT TO:<"a> b"@c.d>"#, Ok(SmtpCommand::Rcpt(r#""a> b"@c.d"#)))]
    #[case("AUTH PLAIN AGEAYg==", Ok(SmtpCommand::Auth { mechanism: "PLAIN", initial: Some("AGEAYg==") }))]
    #[case("quit", Ok(SmtpCommand::Quit))]
    #[case("MAIL FROM:<> SIZE=big", Err("501 5.5.4 SIZE is a number"))]
    #[case("MAIL FROM:<> RET=HDRS", Err("555 5.5.4 Not a parameter that was offered"))]
    #[case("RCPT TO:<a@b.c> NOTIFY=NEVER", Err("555 5.5.4 Not a parameter that was offered"))]
    #[case("MAIL FROM: a@b.example", Err("501 5.5.4 MAIL FROM:<address>"))]
    #[case("RCPT TO:<>", Err("501 5.5.4 RCPT TO:<address>"))]
    #[case("RCPT TO:a@b.c", Err("501 5.5.4 RCPT TO:<address>"))]
    #[case("RCPT TO:<a@b.c", Err("501 5.5.4 RCPT TO:<address>"))]
    #[case("RCPT TO:<a b@c.example>", Err("501 5.5.4 RCPT TO:<address>"))]
    #[case("DATA now", Err("501 5.5.4 No parameters there"))]
    #[case("EHLO", Err("501 5.5.4 Who are you?"))]
    #[case("BDAT 3", Ok(SmtpCommand::Bdat(Some(Chunk { size: 3, is_last: false }))))]
    #[case("bdat 0  last", Ok(SmtpCommand::Bdat(Some(Chunk { size: 0, is_last: true }))))]
    #[case("BDAT", Ok(SmtpCommand::Bdat(None)))]
    #[case("BDAT +3", Ok(SmtpCommand::Bdat(None)))]
    #[case("BDAT -1 LAST", Ok(SmtpCommand::Bdat(None)))]
    #[case("BDAT 3 MORE", Ok(SmtpCommand::Bdat(None)))]
    #[case("BDAT 18446744073709551616", Ok(SmtpCommand::Bdat(None)))]
    #[case("", Err("500 5.5.2 Not a command"))]
    fn a_line_is_a_command_or_gets_its_reply(
        #[case] line: &str,
        #[case] expected: Result<SmtpCommand<'_>, &'static str>,
    ) {
        assert_eq!(parse(line), expected);
    }

    proptest! {
        #[test]
        fn any_line_is_read_without_panic(line in ".{0,80}", verb in "(MAIL FROM:<|RCPT TO:|AUTH |BDAT )") {
            let _ = parse(&line);
            let _ = parse(&format!("{verb}{line}"));
        }
    }
}
