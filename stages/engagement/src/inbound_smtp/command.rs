//! Commands (RFC 5321 §4.1.1, RFC 2033, RFC 1870, RFC 6152, RFC 6531).

/// The largest mail that is taken; of all but its head only the length is kept.
pub(super) const SIZE_MAX: u64 = 25 * 1024 * 1024;
/// The longest address (RFC 5321 §4.5.3.1.3).
const ADDRESS_MAX: usize = 254;

/// A command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum SmtpCommand {
    Helo,
    Ehlo,
    Lhlo,
    /// Whether the sender is null.
    Mail {
        null_sender: bool,
    },
    /// The address, with its domain.
    Rcpt(String),
    Data,
    StartTls,
    Rset,
    Noop,
    Quit,
    /// Never told (RFC 5321 §3.5.3).
    Vrfy,
}

/// Reads a command, or answers the reply to what is none.
pub(super) fn parse(line: &str) -> Result<SmtpCommand, &'static str> {
    let (verb, rest) = line.split_once(' ').unwrap_or((line, ""));
    let rest = rest.trim();
    let bare = |command| if rest.is_empty() { Ok(command) } else { Err("501 5.5.4 No parameters there") };
    match verb.to_ascii_uppercase().as_str() {
        "HELO" | "EHLO" | "LHLO" if rest.is_empty() => Err("501 5.5.4 Who are you?"),
        "HELO" => Ok(SmtpCommand::Helo),
        "EHLO" => Ok(SmtpCommand::Ehlo),
        "LHLO" => Ok(SmtpCommand::Lhlo),
        "MAIL" => mail(rest),
        "RCPT" => recipient(rest),
        "DATA" => bare(SmtpCommand::Data),
        "STARTTLS" => bare(SmtpCommand::StartTls),
        "RSET" => bare(SmtpCommand::Rset),
        "NOOP" => Ok(SmtpCommand::Noop),
        "QUIT" => bare(SmtpCommand::Quit),
        "VRFY" | "EXPN" => Ok(SmtpCommand::Vrfy),
        _ => Err("500 5.5.2 Not a command"),
    }
}

fn mail(rest: &str) -> Result<SmtpCommand, &'static str> {
    let (sender, parameters) = path(rest, "FROM:").ok_or("501 5.5.4 MAIL FROM:<address>")?;
    for parameter in parameters.split_ascii_whitespace() {
        let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
        match name.to_ascii_uppercase().as_str() {
            "SIZE" => match value.parse::<u64>() {
                Ok(size) if size > SIZE_MAX => return Err("552 5.3.4 Larger than what is taken here"),
                Ok(_) => {}
                Err(_) => return Err("501 5.5.4 SIZE is a number"),
            },
            "BODY" if value.eq_ignore_ascii_case("7BIT") || value.eq_ignore_ascii_case("8BITMIME") => {}
            "SMTPUTF8" if value.is_empty() => {}
            _ => return Err("555 5.5.4 Not a parameter that was offered"),
        }
    }
    Ok(SmtpCommand::Mail { null_sender: sender.is_empty() })
}

fn recipient(rest: &str) -> Result<SmtpCommand, &'static str> {
    match path(rest, "TO:") {
        Some((address, "")) if !address.is_empty() => Ok(SmtpCommand::Rcpt(address.to_owned())),
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
    let (address, parameters) = rest[keyword.len()..].trim_start().strip_prefix('<')?.split_once('>')?;
    let address = match address.split_once(':') {
        Some((route, address)) if route.starts_with('@') => address,
        _ => address,
    };
    let sound = address.len() <= ADDRESS_MAX
        && !address.chars().any(|character| character.is_control() || character.is_whitespace() || character == '<')
        && (parameters.is_empty() || parameters.starts_with(' '));
    sound.then_some((address, parameters.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("EHLO mx.example", Ok(SmtpCommand::Ehlo))]
    #[case("mail from:<>", Ok(SmtpCommand::Mail { null_sender: true }))]
    #[case("MAIL FROM:<a@b.example> SIZE=1000 BODY=8BITMIME SMTPUTF8", Ok(SmtpCommand::Mail { null_sender: false }))]
    #[case("RCPT TO:<b-1@send.example>", Ok(SmtpCommand::Rcpt("b-1@send.example".to_owned())))]
    #[case("RCPT TO:<@relay.example:b-1@send.example>", Ok(SmtpCommand::Rcpt("b-1@send.example".to_owned())))]
    #[case("MAIL FROM:<> SIZE=99999999", Err("552 5.3.4 Larger than what is taken here"))]
    #[case("MAIL FROM:<> RET=HDRS", Err("555 5.5.4 Not a parameter that was offered"))]
    #[case("MAIL FROM: a@b.example", Err("501 5.5.4 MAIL FROM:<address>"))]
    #[case("RCPT TO:<>", Err("501 5.5.4 RCPT TO:<address>"))]
    #[case("RCPT TO:<a b@c.example>", Err("501 5.5.4 RCPT TO:<address>"))]
    #[case("DATA now", Err("501 5.5.4 No parameters there"))]
    #[case("EHLO", Err("501 5.5.4 Who are you?"))]
    #[case("BDAT 3", Err("500 5.5.2 Not a command"))]
    fn a_line_is_a_command_or_gets_its_reply(#[case] line: &str, #[case] expected: Result<SmtpCommand, &'static str>) {
        assert_eq!(parse(line), expected);
    }
}
