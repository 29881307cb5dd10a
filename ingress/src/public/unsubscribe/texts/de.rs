//! German.

use super::{Confirmation, PageText, PageTexts, Preferences, Unsubscribe};

pub(super) const TEXTS: PageTexts = PageTexts {
    lang: "de",
    sender: "diesem Absender",
    unsubscribe: Unsubscribe {
        title: "Abmelden",
        question: "Möchten Sie keine Werbe-E-Mails mehr von {from} erhalten? Die Abmeldung gilt sofort.",
        button: "Abmelden",
        rather: "Lieber Themen auswählen",
        done: PageText {
            title: "Sie sind abgemeldet",
            text: "Sie erhalten keine Werbe-E-Mails mehr von {from}. Nachrichten zu Ihren Bestellungen oder Ihrem Konto können Sie weiterhin erreichen.",
        },
        changed_mind: "Anders überlegt? Zu Ihren E-Mail-Einstellungen",
    },
    preferences: Preferences {
        title: "E-Mail-Einstellungen",
        about: "Welche E-Mails von {from} an {address} gehen dürfen.",
        topics: "Themen",
        choose: "Kreuzen Sie an, was Sie erhalten möchten.",
        no_topics: "Es gibt keine Themen zur Auswahl.",
        more_topics: "Diese Seite zeigt höchstens 100 Themen. Schreiben Sie dem Absender wegen weiterer, oder melden Sie sich unten von allem ab.",
        save: "Auswahl speichern",
        saved: "Ihre Auswahl ist gespeichert.",
        everything: "Alle Werbe-E-Mails",
        leave_about: "Keine Werbe-E-Mails mehr, gleich zu welchem Thema. Nachrichten zu Ihren Bestellungen oder Ihrem Konto können Sie weiterhin erreichen.",
        leave: "Von allem abmelden",
        has_left: "Sie erhalten keine Werbe-E-Mails von {from}.",
        return_about: "Möchten Sie sie wieder erhalten? Ihre Einwilligung wird gespeichert, wenn Sie auf die Schaltfläche drücken.",
        come_back: "Wieder anmelden",
        is_back: "Sie sind wieder angemeldet.",
        held: "Zurzeit können Werbe-E-Mails von {from} Sie aus einem Grund nicht erreichen, der sich hier nicht ändern lässt. Bitte fragen Sie dort nach.",
        not_understood: "Mit dem Formular stimmte etwas nicht. Es wurde nichts geändert; bitte versuchen Sie es noch einmal.",
    },
    confirmation: Confirmation {
        title: "Anmeldung bestätigen",
        question: "Möchten Sie Werbe-E-Mails von {from} an {address} erhalten? Sie können sich jederzeit wieder abmelden.",
        button: "Ja, ich möchte sie erhalten",
        done: PageText {
            title: "Sie sind angemeldet",
            text: "Sie erhalten ab jetzt Werbe-E-Mails von {from}. In jeder steht ein Link zum Abmelden.",
        },
        closed: PageText {
            title: "Dieser Link ist nicht mehr gültig",
            text: "Er ist abgelaufen, oder die Adresse erhält keine Werbe-E-Mails von {from} mehr. Wenn Sie sie noch erhalten möchten, melden Sie sich bitte noch einmal an.",
        },
    },
    no_link: PageText {
        title: "Dieser Link funktioniert nicht",
        text: "Vielleicht ist er zu alt, oder ein Mailprogramm hat ihn abgeschnitten. Öffnen Sie ihn noch einmal aus der Nachricht selbst.",
    },
    not_left: PageText {
        title: "Etwas ist schiefgegangen",
        text: "Sie sind <strong>noch nicht</strong> abgemeldet. Bitte versuchen Sie es in einer Minute noch einmal.",
    },
    not_stored: PageText {
        title: "Etwas ist schiefgegangen",
        text: "Ihre Auswahl ist <strong>noch nicht</strong> gespeichert. Bitte versuchen Sie es in einer Minute noch einmal.",
    },
};
