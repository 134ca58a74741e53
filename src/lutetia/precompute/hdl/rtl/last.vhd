library ieee;
use ieee.std_logic_1164.all;

-- The frame marker: high beside the last of every SAMPLES samples that are handed over.
entity lutetia_last is
    generic (SAMPLES : positive := 1);
    port (
        clk, rst : in std_logic;
        valid, ready : in std_logic;
        last : out std_logic
    );
end entity;

architecture behaviour of lutetia_last is
    signal place : natural range 0 to SAMPLES - 1 := 0;  -- of the present sample in its frame
begin
    last <= '1' when place = SAMPLES - 1 else '0';
    process (clk) begin
        if rising_edge(clk) then
            if rst = '1' then
                place <= 0;
            elsif valid = '1' and ready = '1' then
                if place = SAMPLES - 1 then
                    place <= 0;
                else
                    place <= place + 1;
                end if;
            end if;
        end if;
    end process;
end architecture;
