//! Command lines (RFC 5321 §4.1).

/// A command line, taken apart.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Command<'a> {
    Helo,
    Ehlo,
    Mail {
        from: &'a str,
        size: Option<u64>,
    },
    Rcpt {
        to: &'a str,
    },
    Data,
    Rset,
    Noop,
    Verify,
    Auth {
        mechanism: &'a str,
        initial: Option<&'a str>,
    },
    Quit,
    /// A known verb with arguments it cannot have.
    Malformed,
    Unknown,
}

impl<'a> Command<'a> {
    /// Reads a line without its end.
    pub(crate) fn parse(line: &'a str) -> Self {
        let (verb, arguments) = line.split_once(' ').unwrap_or((line, ""));
        let arguments = arguments.trim();
        let is = |name: &str| verb.eq_ignore_ascii_case(name);
        if is("MAIL") {
            mail(arguments).unwrap_or(Self::Malformed)
        } else if is("RCPT") {
            rcpt(arguments).unwrap_or(Self::Malformed)
        } else if is("DATA") {
            Self::Data
        } else if is("EHLO") && !arguments.is_empty() {
            Self::Ehlo
        } else if is("HELO") && !arguments.is_empty() {
            Self::Helo
        } else if is("EHLO") || is("HELO") {
            Self::Malformed
        } else if is("RSET") {
            Self::Rset
        } else if is("NOOP") {
            Self::Noop
        } else if is("VRFY") {
            Self::Verify
        } else if is("AUTH") {
            let mut words = arguments.split_ascii_whitespace();
            match words.next() {
                Some(mechanism) => Self::Auth { mechanism, initial: words.next() },
                None => Self::Malformed,
            }
        } else if is("QUIT") {
            Self::Quit
        } else {
            Self::Unknown
        }
    }
}

fn mail(arguments: &str) -> Option<Command<'_>> {
    let (from, parameters) = path(after_prefix(arguments, "FROM:")?)?;
    let mut size = None;
    for parameter in parameters.split_ascii_whitespace() {
        if let Some(number) = after_prefix(parameter, "SIZE=") {
            size = Some(number.parse().ok()?);
        }
    }
    Some(Command::Mail { from, size })
}

fn rcpt(arguments: &str) -> Option<Command<'_>> {
    let (to, _) = path(after_prefix(arguments, "TO:")?)?;
    (!to.is_empty()).then_some(Command::Rcpt { to })
}

/// `<address> parameters`; a quoted local part may hold `>` and spaces.
fn path(text: &str) -> Option<(&str, &str)> {
    let text = text.trim_start().strip_prefix('<')?;
    let mut quoted = false;
    let mut escaped = false;
    for (place, byte) in text.bytes().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if quoted => escaped = true,
            b'"' => quoted = !quoted,
            b'>' if !quoted => return Some((&text[..place], &text[place + 1..])),
            b'<' | b' ' if !quoted => return None,
            _ => {}
        }
    }
    None
}

fn after_prefix<'a>(text: &'a str, prefix: &str) -> Option<&'a str> {
    let start = text.get(..prefix.len())?;
    start.eq_ignore_ascii_case(prefix).then(|| &text[prefix.len()..])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("MAIL FROM:<>", Command::Mail { from: "", size: None })]
    #[case("mail from:<a@b.c> BODY=8BITMIME SIZE=12", Command::Mail { from: "a@b.c", size: Some(12) })]
    #[case("RCPT TO:<a@b.c>", Command::Rcpt { to: "a@b.c" })]
    #[case("RCPT TO: <a@b.c> NOTIFY=NEVER", Command::Rcpt { to: "a@b.c" })]
    #[case(r#"RCPT TO:<"a> b"@c.d>"#, Command::Rcpt { to: r#""a> b"@c.d"# })]
    #[case("RCPT TO:<>", Command::Malformed)]
    #[case("RCPT TO:a@b.c", Command::Malformed)]
    #[case("RCPT TO:<a@b.c", Command::Malformed)]
    #[case("MAIL FROM:<a@b.c> SIZE=big", Command::Malformed)]
    #[case("EHLO", Command::Malformed)]
    #[case("EHLO client.example", Command::Ehlo)]
    #[case("AUTH PLAIN AGEAYg==", Command::Auth { mechanism: "PLAIN", initial: Some("AGEAYg==") })]
    #[case("quit", Command::Quit)]
    #[case("", Command::Unknown)]
    #[case("EXPN all", Command::Unknown)]
    fn a_line_is_a_command(#[case] line: &str, #[case] command: Command<'_>) {
        assert_eq!(Command::parse(line), command);
    }

    proptest! {
        #[test]
        fn any_line_is_read_without_panic(line in ".{0,80}", verb in "(MAIL FROM:<|RCPT TO:|AUTH )") {
            Command::parse(&line);
            Command::parse(&format!("{verb}{line}"));
        }
    }
}
