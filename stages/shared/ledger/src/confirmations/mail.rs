//! The engine's own confirmation mail, in the languages of the pages. It prints nothing that a sign-up form took but the address: a form
//! is filled by anybody, and a name could be an advertisement.

/// The texts of the mail in one language.
struct ConfirmationTexts {
    /// As a contact's locale begins.
    language: &'static str,
    subject: &'static str,
    /// Before the subject of a reminder.
    reminder: &'static str,
    request: &'static str,
    button: &'static str,
    /// Between the button's text and the address, in the text part.
    colon: &'static str,
    ignore: &'static str,
}

/// Every language, the first where the contact's is none of them.
const TEXTS: [ConfirmationTexts; 4] = [
    ConfirmationTexts {
        language: "en",
        subject: "Please confirm your subscription to {{ data.organisation }}",
        reminder: "Reminder: ",
        request: "The address {{ email }} was entered to get email from {{ data.organisation }}. Please confirm that this is what you want.",
        button: "Confirm",
        colon: ":",
        ignore: "If it was not you, there is nothing to do: without your confirmation you get no newsletter.",
    },
    ConfirmationTexts {
        language: "de",
        subject: "Bitte bestätigen Sie Ihre Anmeldung bei {{ data.organisation }}",
        reminder: "Erinnerung: ",
        request: "Die Adresse {{ email }} wurde für E-Mails von {{ data.organisation }} eingetragen. Bitte bestätigen Sie, dass Sie das wünschen.",
        button: "Bestätigen",
        colon: ":",
        ignore: "Wenn Sie das nicht waren, müssen Sie nichts tun: Ohne Ihre Bestätigung erhalten Sie keinen Newsletter.",
    },
    ConfirmationTexts {
        language: "fr",
        subject: "Veuillez confirmer votre inscription auprès de {{ data.organisation }}",
        reminder: "Rappel : ",
        request: "L’adresse {{ email }} a été saisie pour recevoir des e-mails de {{ data.organisation }}. Veuillez confirmer que c’est bien votre souhait.",
        button: "Confirmer",
        colon: " :",
        ignore: "Si ce n’était pas vous, vous n’avez rien à faire : sans votre confirmation, vous ne recevrez aucune newsletter.",
    },
    ConfirmationTexts {
        language: "es",
        subject: "Confirme su suscripción a {{ data.organisation }}",
        reminder: "Recordatorio: ",
        request: "Se ha introducido la dirección {{ email }} para recibir correos de {{ data.organisation }}. Confirme que es lo que desea.",
        button: "Confirmar",
        colon: ":",
        ignore: "Si no ha sido usted, no tiene que hacer nada: sin su confirmación no recibirá ningún boletín.",
    },
];

/// The mails as columns, one row for each language.
#[derive(Debug, Default)]
pub(super) struct MailColumns {
    pub(super) languages: Vec<String>,
    pub(super) subjects: Vec<String>,
    pub(super) html: Vec<String>,
    pub(super) texts: Vec<String>,
}

/// The mails of all languages, the default first.
pub(super) fn columns() -> MailColumns {
    let mut columns = MailColumns::default();
    for ConfirmationTexts { language, subject, reminder, request, button, colon, ignore } in TEXTS {
        columns.languages.push(language.to_owned());
        columns.subjects.push(format!("{{% if data.is_reminder %}}{reminder}{{% endif %}}{subject}"));
        columns.html.push(format!(
            "<!DOCTYPE html><html lang=\"{language}\"><head><meta charset=\"utf-8\"><title>{subject}</title></head>\
             <body style=\"font-family:Arial,Helvetica,sans-serif;font-size:16px;line-height:24px;color:#1c1c1e\"><p>{request}</p>\
             <p><a href=\"{{{{ data.confirmation_url }}}}\" style=\"display:inline-block;padding:10px 20px;background:#1d4ed8;\
             color:#ffffff;text-decoration:none;border-radius:6px\">{button}</a></p><p>{ignore}</p></body></html>"
        ));
        columns.texts.push(format!("{request}\n\n{button}{colon} {{{{ data.confirmation_url }}}}\n\n{ignore}\n"));
    }
    columns
}
